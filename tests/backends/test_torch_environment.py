"""What torch reads when it is imported."""

from __future__ import annotations

import os

import pytest

from homeai.backends import torch as torch_backend


def test_what_the_owner_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {"LRU_CACHE_CAPACITY": "1024"})
    torch_backend.set_environment()
    assert os.environ["LRU_CACHE_CAPACITY"] == "1024"
    assert os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == "64"
    assert os.environ["OMP_WAIT_POLICY"] == "passive"
