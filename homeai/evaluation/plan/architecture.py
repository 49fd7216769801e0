"""What of a language model decides its memory and speed: bytes and multiplications of its parts.

`Numbers` are what a model card says; `Architecture` is what follows. Of a file: `architecture_file.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from homeai.errors import ConfigError
from homeai.model_sizes import ModelSizes


@dataclass(frozen=True, slots=True)
class Window:
    """Sliding-window attention: the layers that have it look at the last `num_tokens` only."""

    num_tokens: int
    num_layers: int


@dataclass(frozen=True, slots=True)
class Experts:
    """Of each token `num_used` of `num_total` are computed. share: of the layers' weights, those of experts."""

    num_total: int
    num_used: int
    share: float

    def part_read(self, num_tokens: int) -> float:
        """Of the layers' weights, what a step of so many tokens reads, when each token takes any experts."""
        untouched = (1 - self.num_used / self.num_total) ** num_tokens
        return 1 - self.share * untouched

    @property
    def part_used(self) -> float:
        """Of the layers' parameters, those that one token is multiplied with."""
        return 1 - self.share * (1 - self.num_used / self.num_total)


@dataclass(frozen=True, slots=True)
class Architecture:
    """layer_parameters: of all repeating layers. attention_width: heads × head size of one layer, before attention."""

    name: str
    sizes: ModelSizes
    num_parameters: float
    layer_parameters: float
    attention_width: int
    window: Window | None = None
    experts: Experts | None = None

    @property
    def num_layers(self) -> int:
        return len(self.sizes.layers)

    @property
    def output_parameters(self) -> float:
        """Of the matrix that makes logits."""
        return float(self.sizes.num_vocab * self.sizes.num_embd)

    @property
    def layer_bytes(self) -> int:
        return sum(self.sizes.layers)

    @property
    def output_bytes(self) -> int:
        """Read for each row that gets logits; the embedding itself is looked up only."""
        return self.sizes.output + (self.sizes.embedding if self.sizes.is_tied else 0)

    @property
    def kv_bytes_per_token(self) -> int:
        """f16, all layers."""
        return self.sizes.kv_bytes(1, "f16")

    def layer_bytes_read(self, num_tokens: int) -> float:
        return self.layer_bytes * (self.experts.part_read(num_tokens) if self.experts else 1.0)

    @property
    def layer_flops(self) -> float:
        """Per token: a multiplication and an addition for each parameter in use."""
        return 2 * self.layer_parameters * (self.experts.part_used if self.experts else 1.0)

    @property
    def output_flops(self) -> float:
        return 2 * self.output_parameters

    def attended(self, context: float) -> float:
        """Of `context` tokens, those that a layer looks at, on average over the layers."""
        if self.window is None or context <= self.window.num_tokens:
            return context
        part = self.window.num_layers / self.num_layers
        return part * self.window.num_tokens + (1 - part) * context

    def attention_flops(self, pairs: float) -> float:
        """Queries × keys, then weights × values, in every layer."""
        return 4 * self.attention_width * self.num_layers * pairs

    def kv_bytes(self, num_cells: int, num_seqs: int, step_tokens: int, kv_type: str, *, swa_full: bool) -> int:
        """Of so many cells. Without `swa_full` a windowed layer keeps the window of each sequence and a step only."""
        every = self.sizes.kv_bytes(num_cells, kv_type)
        if self.window is None or swa_full:
            return every
        kept = min(num_cells, num_seqs * self.window.num_tokens + step_tokens)
        windowed = self.window.num_layers / self.num_layers
        return int(every * (1 - windowed) + self.sizes.kv_bytes(kept, kv_type) * windowed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """A model as its card describes it. None: as follows from the others, where that is possible.

    ff: width of the feed-forward part; with experts, of one. parameters: in all.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int | None = None
    head_dim: int | None = None
    ff: int | None = None
    vocab: int
    parameters: float | None = None
    bytes_per_weight: float = 2.0
    tied: bool = False
    window: int | None = None
    windowed_layers: int | None = None
    experts: int | None = None
    experts_used: int | None = None
    context: int = 131_072


def of_numbers(numbers: Numbers, name: str | None = None) -> Architecture:
    """Raises `ConfigError` for numbers that contradict each other, or are too few."""
    _check(numbers)
    n, kv_heads = numbers, numbers.kv_heads or numbers.heads
    head_dim = n.head_dim or n.hidden // n.heads
    attention = n.hidden * head_dim * (2 * n.heads + 2 * kv_heads)  # queries and output, keys and values
    matrices = n.vocab * n.hidden
    outside = matrices * (1 if n.tied else 2)
    if n.parameters is None:
        assert n.ff is not None
        feed_forward = 3 * n.hidden * n.ff * (n.experts or 1)
        layer_parameters = float(n.layers * (attention + feed_forward))
    else:
        layer_parameters = n.parameters - outside
        feed_forward = int(layer_parameters / n.layers) - attention
        if feed_forward <= 0:
            raise ConfigError(
                f"--parameters {n.parameters:.3g}: the vocabulary ({outside:.3g}) and attention "
                f"({n.layers * attention:.3g}) alone have more"
            )
    layer_bytes = layer_parameters * n.bytes_per_weight
    sizes = ModelSizes(
        embedding=int(matrices * n.bytes_per_weight),
        layers=(int(layer_bytes / n.layers),) * n.layers,
        output=0 if n.tied else int(matrices * n.bytes_per_weight),
        is_tied=n.tied,
        kv_values=n.layers * 2 * kv_heads * head_dim,
        num_vocab=n.vocab,
        num_embd=n.hidden,
        num_ff=n.ff or feed_forward // (3 * n.hidden * (n.experts or 1)),
        n_ctx_train=n.context,
    )
    window = None
    if n.window is not None:
        window = Window(n.window, n.layers if n.windowed_layers is None else n.windowed_layers)
    experts = None
    if n.experts is not None and n.experts_used is not None:
        experts = Experts(n.experts, n.experts_used, feed_forward / (attention + feed_forward))
    num_parameters = layer_parameters + outside
    return Architecture(
        name=name or f"{num_parameters / 1e9:.1f}B at {n.bytes_per_weight:.2g} bytes per weight",
        sizes=sizes,
        num_parameters=num_parameters,
        layer_parameters=layer_parameters,
        attention_width=n.heads * head_dim,
        window=window,
        experts=experts,
    )


def _check(n: Numbers) -> None:
    if n.parameters is None and n.ff is None:
        raise ConfigError("--parameters or --ff: one of them is needed, else nothing tells how large a layer is")
    if n.head_dim is None and n.hidden % n.heads:
        raise ConfigError(f"--heads {n.heads}: does not divide --hidden {n.hidden}; say --head-dim")
    if n.kv_heads is not None and n.heads % n.kv_heads:
        raise ConfigError(f"--kv-heads {n.kv_heads}: does not divide --heads {n.heads}")
    if (n.experts is None) != (n.experts_used is None):
        raise ConfigError("--experts and --experts-used: a model has both or neither")
    if n.experts is not None and n.experts_used is not None and n.experts_used > n.experts:
        raise ConfigError(f"--experts-used {n.experts_used}: there are --experts {n.experts}")
    if n.windowed_layers is not None and (n.window is None or n.windowed_layers > n.layers):
        raise ConfigError(f"--windowed-layers {n.windowed_layers}: of --layers {n.layers}, with --window {n.window}")
