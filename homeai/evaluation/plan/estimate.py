"""Step times of a card that was not measured, from its data sheet."""

from __future__ import annotations

from homeai.errors import ConfigError
from homeai.evaluation.plan import gpus, models
from homeai.evaluation.plan.architecture import Architecture
from homeai.evaluation.plan.capacity import Setting, max_cells
from homeai.evaluation.plan.gpus import GPU
from homeai.evaluation.plan.roofline import RooflineCost, assumed


def estimate(preset: str, model_size: str) -> RooflineCost:
    """Raises `ConfigError` for names that are not known, and for a model that does not fit."""
    return on_card(gpus.find(preset, "--preset"), models.find(model_size), Setting(num_seqs=8, context=4096))


def on_card(gpu: GPU, model: Architecture, setting: Setting) -> RooflineCost:
    """Raises `ConfigError` for a model that does not fit."""
    num_cells = max_cells(model, gpu, setting)
    if num_cells == 0:
        raise ConfigError(
            f"{model.name} needs {model.sizes.weights / 1e9:.1f} GB for its weights alone, too much for the "
            f"{gpu.memory_bytes / 1e9:.0f} GB of an {gpu.name}"
        )
    label = f"{model.name} on {gpu.name} (ESTIMATE from public specifications, not measured)"
    return RooflineCost(model, assumed(gpu), label, gpu.name, num_cells)
