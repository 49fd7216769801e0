import numpy as np
import pytest

from homeai.sampling.philox import philox_word, uniform


def test_first_word_is_the_known_answer_of_random123() -> None:
    assert philox_word(0, 0) == 0x16554D9ECA36314C


@pytest.mark.parametrize("seed", [0, 1, 42, 2**32, 2**63 + 5, 2**64 - 1])
@pytest.mark.parametrize("index", [1, 2, 1000, 2**40])
def test_words_are_those_of_numpy(seed: int, index: int) -> None:
    numpys = np.random.Philox(key=seed, counter=index - 1)  # numpy steps its counter before the first block
    assert philox_word(seed, index) == numpys.random_raw()


def test_seeds_are_taken_modulo_two_to_the_64() -> None:
    assert philox_word(-1, 7) == philox_word(2**64 - 1, 7) == philox_word(2**65 - 1, 7)


def test_neighbouring_seeds_and_indices_are_unrelated_uniforms() -> None:
    drawn = np.array([[uniform(seed, index) for index in range(100)] for seed in range(100)])
    assert drawn.min() >= 0
    assert drawn.max() < 1
    assert np.unique(drawn).size == drawn.size
    assert np.histogram(drawn, bins=10, range=(0, 1))[0] == pytest.approx(np.full(10, 1000), abs=120)  # 4 sigma
