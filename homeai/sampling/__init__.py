"""From logits rows to tokens: what a request asked of its draws, in numpy, for the whole batch.

`BatchSampler`, `SamplerState` and `GrammarState` are all that a runner needs. What a grammar allows comes from the
runner's own matcher; detokenising and stop strings do not belong here.
"""

from homeai.errors import BrokenLogits
from homeai.sampling.grammar import GrammarState
from homeai.sampling.sampler import BatchSampler
from homeai.sampling.state import SamplerState

__all__ = ["BatchSampler", "BrokenLogits", "GrammarState", "SamplerState"]
