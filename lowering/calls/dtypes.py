"""Translate element types to torch's dtypes."""

from __future__ import annotations

import torch
from xdsl.utils.exceptions import VerifyException


def torch_dtype(name: str) -> torch.dtype:
    """Return torch's dtype for a name from `dialects.compute.dtype_of`; raise VerifyException if torch has none."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise VerifyException(f"torch has no dtype for elements of type {name[:60]}; expected f32, bf16, i64, i1, ...")
    return dtype
