"""How a verifier says that the fault is in an op that is in its own."""

from xdsl.ir import Operation
from xdsl.utils.exceptions import VerifyException


class InnerFault(VerifyException):
    """
    What is wrong with an op, found by the verifier of one around it.

    Args:
        op: the op that does not verify.
        reason: why.
    """

    def __init__(self, op: Operation, reason: str) -> None:
        super().__init__(f"'{op.name}': {reason}")
        self.op, self.reason = op, reason
