"""
Run a training script in a thread with a process group that was made before, as Ray Train does:
`in_a_thread.py SCRIPT ARGUMENTS`.
"""

from __future__ import annotations

import runpy
import sys
import threading

import torch.distributed as dist


def work() -> None:
    dist.init_process_group("gloo")
    runpy.run_path(sys.argv[1])["main"](sys.argv[2:])
    dist.destroy_process_group()


if __name__ == "__main__":
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
