"""Whether Inductor can compile for a device on this machine."""

from __future__ import annotations

import torch

from ..plan import PlanError

ADVICE = "leave out compile=True (--compile) to run without it"


def verify_usable(device: torch.device) -> None:
    """
    Check that the tools which Inductor needs are installed, before its first use.

    Raises:
        PlanError: the C++ compiler is missing, or Triton for a GPU.
    """
    # Imported late: the import of Inductor takes seconds, which only a compiling job should wait for.
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler
    from torch.utils._triton import has_triton

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler as error:
        raise PlanError(
            "compile=True needs a C++ compiler to build the kernels of Inductor, and found none: install "
            f"g++ or clang++, or name a compiler in the environment variable CXX; {ADVICE}"
        ) from error
    if device.type == "cuda" and not has_triton():
        raise PlanError(f"compile=True needs Triton for the kernels of {device}, which is not installed; {ADVICE}")
