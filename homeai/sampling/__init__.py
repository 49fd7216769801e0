"""From logits rows to tokens: what a request asked of its draws, in numpy, for the whole batch.

`BatchSampler` and `SamplerState` are all that a runner needs. Grammar state, when it comes, belongs here;
detokenising and stop strings do not.
"""

from homeai.errors import BrokenLogits
from homeai.sampling.sampler import BatchSampler
from homeai.sampling.state import SamplerState

__all__ = ["BatchSampler", "BrokenLogits", "SamplerState"]
