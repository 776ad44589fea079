"""A fault of one rank ends the job within the bounds, with one message that names it and no remaining process."""

from __future__ import annotations

import re

import faulty_steps
import pytest
from faulty_jobs import LEFT_OVER, Ended, run_job

R1 = r"Sequential: rank 1 \(\S+\)"
TOLD = {
    "killed": rf"{R1} is gone: it was killed.*rank 0 \(\S+\) is in step 4",
    "stopped": rf"{R1} does not answer .* stopped by a signal \(kill -CONT .*rank 0 \(\S+\) has waited 2 s in step 4",
    "hung_before_the_first_step": rf"{R1} does not answer in the script's code before the first step, .* in step 1",
    "never_came": r"Sequential: rank 0: ranks 1 of the job did not arrive within 2 s: check what they do before",
    "made_no_model": rf"{R1} does not answer .* before the first step, .* in read_for_ever: .* raise start of FaultB",
    "hung_planner": r"rank 0 \(\S+\) does not answer .* before the first .* in read_for_ever: rank 1 .* raise plan",
    "stopped_while_measured": rf"{R1} does not .* stopped by a signal .* in the measurement of the ranks",
    "hung_before_a_save": rf"{R1} does not answer .* after step 3, .* in read_for_ever: .* a checkpoint; .* silent",
    "hung_between_saves": rf"{R1} does not answer .* after step 3, .* in read_for_ever: .* read; .* raise silent",
    "hung_in_a_save": rf"{R1} does not answer .* after step 3, .* in read_for_ever: .* in the checkpoint .* raise save",
    "hung_beside_training": rf"{R1} does not answer .* after step 6, .* in _save: .* in the checkpoint .* raise save",
    "hung": rf"{R1} does not answer in the script's code after step 3, faulty_steps.py:\d+ in read_for_ever: rank 0",
    "hung_finder": rf"{R1} does not answer in the script's code after step 3, .* in read_for_ever: rank 0",
    "left_early": rf"{R1} left early: its script ended after step 3, and rank 0 \(\S+\) waits for it in step 4",
    "one_step_more": r"Sequential: rank 0 \(\S+\) left early: its script ended after step 3, and rank 1 .* in step 4",
    "one_step_more_alone": r"the ranks ran different numbers of training steps: 3 on rank 0 \(\S+\), 4 on rank 1",
    "out_of_memory": rf"{R1}: ran out of memory after step 3: .*keep less for backward \(keep_activations=\)",
    "told_to_end": rf"{R1} was ended by SIGTERM",
    "nan_in_the_batch": r"the loss of step 4 is nan: .* rank 1 \(\S+\): 1 in item '0'; mend the data",
    "nan_of_the_step": r"the loss of step \d+ is (nan|inf): the batches of all ranks are finite.* lower the",
    "refused": r"on_nan='leave out': expected 'raise', 'skip' or 'ignore'",
    "other_weights": r"rank 1 \(\S+\) holds another param '0.weight' .*they no longer train the same model",
    "other_rate": r"rank 1 \(\S+\) had other learning rates than the other ranks since the start",
    "other_batch": r"rank 1 \(\S+\) got another item '0' of the batch than other ranks; load the same data on all",
}


NOTES = ("the plan splits nothing", "measuring the 2 ranks of this job", "is slow: it computes for")
"""Messages that are not about the fault; a busy machine may make one rank slow."""


@pytest.mark.distributed
@pytest.mark.parametrize("fault", TOLD)
def test_one_rank_reports_the_fault_and_all_ranks_end(fault: str):
    ended = run_job(getattr(faulty_steps, fault))
    assert not {0, LEFT_OVER} & {*ended.codes}
    (line,) = (line for line in ended.errors.splitlines() if not any(note in line for note in NOTES))
    assert re.search(TOLD[fault], line), line


@pytest.mark.distributed
def test_another_rank_reports_that_rank_0_is_stopped():
    ended = run_job(faulty_steps.stopped_rank_0, 3)
    assert not {0, LEFT_OVER} & {*ended.codes}
    (line,) = ended.errors.splitlines()
    told = r"Sequential: rank 0 \(\S+\) does not answer .* stopped by a signal .* has waited 2 s in step 4"
    assert re.match(told, line), line


STORE = {
    "killed_rank_0": (2, r"Sequential: rank 0 \(\S+\), which holds the job's store, is gone \("),
    "stopped_rank_0": (
        3,
        r"Sequential: rank 0 \(\S+\), which holds the job's store, does not answer, stopped by a signal \(kill -CONT .*"
        r"rank 1 \(\S+\) has waited \d+ s in step 4, in ",
    ),
    "hung": (2, TOLD["hung"]),
    "killed": (2, TOLD["killed"]),
}


@pytest.mark.distributed
@pytest.mark.parametrize("fault", STORE)
def test_without_torchrun_rank_0_holds_the_store_and_faults_are_reported(fault: str):
    ranks, told = STORE[fault]
    ended = run_job(getattr(faulty_steps, fault), ranks, by_torchrun=False)
    assert not {0, LEFT_OVER} & {*ended.codes}
    # torch may log that the store's socket was closed.
    (line,) = (line for line in ended.errors.splitlines() if line.startswith("Sequential"))
    assert re.match(told, line), line


@pytest.mark.distributed
def test_an_error_of_the_script_is_printed_once_with_its_traceback():
    ended = run_job(faulty_steps.raised)
    assert 0 not in ended.codes
    assert re.match(rf"{R1}: LookupError after step 3: no such sample", ended.errors)
    assert ended.errors.count("Traceback") == 1
    assert ended.errors.rstrip().endswith("LookupError: no such sample")


@pytest.mark.distributed
@pytest.mark.parametrize("job", ["fine", "nan_ignored"])
def test_a_job_without_a_fault_ends_without_messages(job: str):
    ended = run_job(getattr(faulty_steps, job))
    assert ended == Ended((0, 0), "", ended.seconds)


@pytest.mark.distributed
def test_a_slow_rank_causes_a_warning_and_the_job_continues():
    ended = run_job(faulty_steps.slow)
    assert ended.codes == (0, 0)
    (line,) = ended.errors.splitlines()
    assert re.match(rf"{R1} is slow: it computes for 0\.\d+ s per step, the others for", line), line
