"""The matrix product that scripts/llama-cpp.patch makes faster, as ggml computes it, against float64."""

from __future__ import annotations

import ctypes
from pathlib import Path

import llama_cpp
import numpy as np
import pytest

LIBRARIES = Path(llama_cpp.__file__).parent / "lib"
BLOCK = 32  # values
TYPES = {"q4_0": (2, 18), "q5_0": (6, 22), "q8_0": (8, 34), "iq4_nl": (20, 18)}  # name: ggml's number, bytes a block
F32 = 0
ROOM = 16 << 20


class InitParams(ctypes.Structure):
    """ggml_init_params"""

    _fields_ = (("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))


class Ggml:
    """As much of it as a product of matrices takes."""

    def __init__(self) -> None:
        self._base = ctypes.CDLL(str(LIBRARIES / "libggml-base.so"))
        self._cpu = ctypes.CDLL(str(LIBRARIES / "libggml-cpu.so"))
        self._cpu.ggml_cpu_init()
        for name in ("ggml_init", "ggml_new_tensor_3d", "ggml_mul_mat", "ggml_new_graph", "ggml_get_data"):
            getattr(self._base, name).restype = ctypes.c_void_p

    def quantised(self, type_name: str, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The blocks of `values` [..., columns], and what they stand for."""
        number, num_bytes = TYPES[type_name]
        source = np.ascontiguousarray(values, np.float32)
        num_columns = source.shape[-1]
        num_rows = source.size // num_columns
        blocks = np.empty((*source.shape[:-1], num_columns // BLOCK * num_bytes), np.uint8)
        size = (ctypes.c_int64(0), ctypes.c_int64(num_rows), ctypes.c_int64(num_columns))
        self._base.ggml_quantize_chunk(number, pointer(source), pointer(blocks), *size, None)
        meant = np.empty_like(source)
        dequantise = getattr(self._base, f"dequantize_row_{type_name}")
        dequantise(pointer(blocks), pointer(meant), ctypes.c_int64(source.size))
        return blocks, meant

    def product(self, type_name: str, weights: np.ndarray, inputs: np.ndarray, num_threads: int) -> np.ndarray:
        """Blocks [matrices, rows, bytes], inputs [matrices, columns, values] → [matrices, columns, rows]."""
        context = ctypes.c_void_p(self._base.ggml_init(InitParams(ROOM, None, False)))
        a = self._tensor(context, TYPES[type_name][0], weights, weights.shape[-1] // TYPES[type_name][1] * BLOCK)
        b = self._tensor(context, F32, inputs, inputs.shape[-1])
        result = ctypes.c_void_p(self._base.ggml_mul_mat(context, a, b))
        graph = ctypes.c_void_p(self._base.ggml_new_graph(context))
        self._base.ggml_build_forward_expand(graph, result)
        assert self._cpu.ggml_graph_compute_with_ctx(context, graph, num_threads) == 0
        values = np.empty((*inputs.shape[:2], weights.shape[1]), np.float32)
        ctypes.memmove(values.ctypes.data, self._base.ggml_get_data(result), values.nbytes)
        self._base.ggml_free(context)
        return values

    def _tensor(self, context: ctypes.c_void_p, number: int, data: np.ndarray, num_values: int) -> ctypes.c_void_p:
        sizes = [ctypes.c_int64(size) for size in (num_values, data.shape[1], data.shape[0])]
        tensor = ctypes.c_void_p(self._base.ggml_new_tensor_3d(context, number, *sizes))
        ctypes.memmove(self._base.ggml_get_data(tensor), data.ctypes.data, data.nbytes)
        return tensor


@pytest.fixture(scope="module")
def ggml() -> Ggml:
    return Ggml()


def pointer(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def random_weights(ggml: Ggml, type_name: str, *shape: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(sum(shape))
    scale = np.exp(random.normal(size=(*shape[:-1], 1)))  # rows as different as in a model
    return ggml.quantised(type_name, scale * random.normal(size=shape))


def random_inputs(ggml: Ggml, *shape: int) -> np.ndarray:
    """Which ggml's own rounding to Q8_0 leaves as they are."""
    return ggml.quantised("q8_0", np.random.default_rng(sum(shape)).normal(size=shape))[1]


@pytest.mark.parametrize("type_name", TYPES)
@pytest.mark.parametrize("num_blocks", [1, 20, 33])
@pytest.mark.parametrize("num_rows", [5, 16, 64, 117, 700])
def test_product_is_right_for_every_number_of_columns(
    ggml: Ggml, type_name: str, num_blocks: int, num_rows: int
) -> None:
    weights, w = random_weights(ggml, type_name, 1, num_rows, num_blocks * BLOCK)
    for num_columns in (*range(1, 18), 40):
        check(ggml, type_name, weights, w, random_inputs(ggml, 1, num_columns, num_blocks * BLOCK), num_columns)


@pytest.mark.parametrize("type_name", TYPES)
def test_each_of_several_matrices_has_its_own_product(ggml: Ggml, type_name: str) -> None:
    weights, w = random_weights(ggml, type_name, 3, 117, 4 * BLOCK)
    for num_columns in (1, 2, 9):
        check(ggml, type_name, weights, w, random_inputs(ggml, 3, num_columns, 4 * BLOCK), 1)


def check(ggml: Ggml, type_name: str, weights: np.ndarray, w: np.ndarray, x: np.ndarray, num_threads: int) -> None:
    result = ggml.product(type_name, weights, x, 1 + num_threads % 3)
    exact = x.astype(np.float64) @ w.astype(np.float64).transpose(0, 2, 1)
    size = np.abs(x).astype(np.float64) @ np.abs(w).transpose(0, 2, 1)  # what rounding is relative to
    assert np.max(np.abs(result - exact) / size) < 1e-6


@pytest.mark.skipif(
    "avx512_vnni" not in Path("/proc/cpuinfo").read_text(), reason="elsewhere one column has a kernel of its own"
)
@pytest.mark.parametrize("type_name", TYPES)
def test_column_does_not_depend_on_its_neighbours(ggml: Ggml, type_name: str) -> None:
    weights, _ = random_weights(ggml, type_name, 1, 112, 20 * BLOCK)
    inputs = random_inputs(ggml, 1, 19, 20 * BLOCK)
    alone = ggml.product(type_name, weights, inputs[:, :1], 1)
    for num_columns in range(2, 20):
        result = ggml.product(type_name, weights, np.ascontiguousarray(inputs[:, :num_columns]), 2)
        np.testing.assert_array_equal(result[0, 0], alone[0, 0])
