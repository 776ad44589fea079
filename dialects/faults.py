"""An error for verifiers that find a fault in an op nested in their own."""

from xdsl.ir import Operation
from xdsl.utils.exceptions import VerifyException


class InnerFault(VerifyException):
    """
    A fault of an op, found by the verifier of an op around it.

    Args:
        op: the op that does not verify.
        reason: why.
    """

    def __init__(self, op: Operation, reason: str) -> None:
        super().__init__(f"'{op.name}': {reason}")
        self.op, self.reason = op, reason
