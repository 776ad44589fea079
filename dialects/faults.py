"""An error for verifiers that find a fault in a nested op."""

from xdsl.ir import Operation
from xdsl.utils.exceptions import VerifyException


class InnerFault(VerifyException):
    """
    A fault of an op that the verifier of an enclosing op found.

    Args:
        op: the op that does not verify.
        reason: why the op does not verify.
    """

    def __init__(self, op: Operation, reason: str) -> None:
        super().__init__(f"'{op.name}': {reason}")
        self.op, self.reason = op, reason
