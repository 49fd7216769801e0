"""The matrix product that scripts/llama-cpp.patch makes faster, against float64."""

from __future__ import annotations

import ctypes
from pathlib import Path

import llama_cpp
import numpy as np
import pytest

LIBRARIES = Path(llama_cpp.__file__).parent / "lib"
BLOCK = 32  # values
TYPES = {"q4_0": (2, 18), "q5_0": (6, 22), "q8_0": (8, 34), "iq4_nl": (20, 18)}  # name: ggml's number, bytes a block
F32, Q8_0 = 0, 8


class ComputeParams(ctypes.Structure):
    """ggml_compute_params"""

    _fields_ = (
        ("ith", ctypes.c_int),
        ("nth", ctypes.c_int),
        ("wsize", ctypes.c_size_t),
        ("wdata", ctypes.c_void_p),
        ("threadpool", ctypes.c_void_p),
        ("use_ref", ctypes.c_bool),
    )


@pytest.fixture(scope="module")
def ggml() -> ctypes.CDLL:
    base = ctypes.CDLL(str(LIBRARIES / "libggml-base.so"), mode=ctypes.RTLD_GLOBAL)
    base.ggml_quantize_chunk.restype = ctypes.c_size_t
    return base


@pytest.fixture(scope="module")
def sgemm(ggml: ctypes.CDLL) -> ctypes._NamedFuncPointer:
    cpu = ctypes.CDLL(str(LIBRARIES / "libggml-cpu.so"))
    cpu.ggml_cpu_init()  # tables of halves
    function = cpu.llamafile_sgemm
    function.restype = ctypes.c_bool
    return function


def quantised(ggml: ctypes.CDLL, type_name: str, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The blocks of `values` (rows x columns), and what they stand for."""
    number, num_bytes = TYPES[type_name]
    num_rows, num_columns = values.shape
    blocks = np.empty((num_rows, num_columns // BLOCK * num_bytes), np.uint8)
    source = np.ascontiguousarray(values, np.float32)
    size = (ctypes.c_int64(0), ctypes.c_int64(num_rows), ctypes.c_int64(num_columns))
    ggml.ggml_quantize_chunk(number, pointer(source), pointer(blocks), *size, None)
    meant = np.empty_like(source)
    getattr(ggml, f"dequantize_row_{type_name}")(pointer(blocks), pointer(meant), ctypes.c_int64(values.size))
    return blocks, meant


def pointer(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def product(
    sgemm: ctypes._NamedFuncPointer, type_name: str, weights: np.ndarray, inputs: np.ndarray, num_threads: int
) -> np.ndarray | None:
    """[columns, rows]; None where it is left to another kernel."""
    number, num_bytes = TYPES[type_name]
    num_rows, num_columns, num_blocks = len(weights), len(inputs), weights.shape[1] // num_bytes
    result = np.full((num_columns, num_rows), np.nan, np.float32)
    m, n, k = (ctypes.c_int64(size) for size in (num_rows, num_columns, num_blocks))
    for thread in range(num_threads):
        params = ComputeParams(thread, num_threads)
        operands = (pointer(weights), k, pointer(inputs), k, pointer(result), m)
        if not sgemm(ctypes.byref(params), m, n, k, *operands, number, Q8_0, F32):
            return None
    return result


@pytest.mark.parametrize("type_name", TYPES)
@pytest.mark.parametrize("num_blocks", [1, 20, 33])
@pytest.mark.parametrize("num_rows", [5, 16, 64, 117])
def test_product_is_right_for_every_number_of_columns(
    ggml: ctypes.CDLL, sgemm: ctypes._NamedFuncPointer, type_name: str, num_blocks: int, num_rows: int
) -> None:
    random = np.random.default_rng(num_rows * num_blocks)
    scale = np.exp(random.normal(size=(num_rows, 1)))  # rows as different as in a model
    weights, w = quantised(ggml, type_name, scale * random.normal(size=(num_rows, num_blocks * BLOCK)))
    for num_columns in (*range(2, 18), 40):
        inputs, x = quantised(ggml, "q8_0", random.normal(size=(num_columns, num_blocks * BLOCK)))
        result = product(sgemm, type_name, weights, inputs, 1 + num_columns % 3)
        assert result is not None
        exact = x.astype(np.float64) @ w.T.astype(np.float64)
        size = np.abs(x).astype(np.float64) @ np.abs(w).T  # what rounding is relative to
        assert np.max(np.abs(result - exact) / size) < 1e-6


@pytest.mark.parametrize("type_name", TYPES)
def test_column_does_not_depend_on_its_neighbours(
    ggml: ctypes.CDLL, sgemm: ctypes._NamedFuncPointer, type_name: str
) -> None:
    random = np.random.default_rng(7)
    weights, _ = quantised(ggml, type_name, random.normal(size=(117, 20 * BLOCK)))
    inputs, _ = quantised(ggml, "q8_0", random.normal(size=(19, 20 * BLOCK)))
    alone = product(sgemm, type_name, weights, inputs[:1], 1)
    if alone is None:
        pytest.skip("not a processor with AVX-512 VNNI: one column has a kernel of its own")
    for num_columns in range(2, 20):
        result = product(sgemm, type_name, weights, inputs[:num_columns], 2)
        assert result is not None
        np.testing.assert_array_equal(result[0], alone[0])
