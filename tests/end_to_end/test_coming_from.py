"""The scripts with Shardwright on the page `coming-from.md` train."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from forked import run_python

LIBRARIES = ("DDP", "FSDP2", "Accelerate", "DeepSpeed", "Lightning")
PAGE = (Path(__file__).parents[2] / "docs" / "coming-from.md").read_text()
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
(PRELUDE,), SECTIONS = BLOCK.findall(PAGE.partition("\n## ")[0]), PAGE.split("\n## ")[1:]
SCRIPTS = {text.partition("\n")[0]: BLOCK.findall(text) for text in SECTIONS}
"""Library -> its script and the script with Shardwright."""

LAST_LOSS = {"Lightning": "trainer.callback_metrics['loss']"}
"""Library -> the last loss at the end of the script, if it is not `loss`."""


def test_every_library_has_two_scripts():
    assert {library: len(scripts) for library, scripts in SCRIPTS.items()} == dict.fromkeys(LIBRARIES, 2)


@pytest.mark.distributed
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_script_with_shardwright_trains(library: str, tmp_path: Path):
    if library == "Lightning" and find_spec("lightning") is None:
        pytest.skip("lightning is not installed")
    ours = SCRIPTS[library][1]
    (tmp_path / "train.py").write_text(f"{PRELUDE}\n{ours}\nprint('loss', float({LAST_LOSS.get(library, 'loss')}))\n")
    done = run_python("train.py", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    (loss,) = re.findall(r"^loss (\S+)$", done.stdout, re.MULTILINE)
    # Labels are random: the loss stays near that of equal probabilities for ten classes.
    assert 1.8 < float(loss) < 2.6
    saved = {"DDP": "model.pt", "Lightning": "train.py"}.get(library, "run/step-00000004")
    assert (tmp_path / saved).exists()
