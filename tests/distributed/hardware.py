"""What the layouts under test run on, and how closely they must agree with one CPU rank."""

from dataclasses import dataclass
from typing import Any

import pytest


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """Largest relative differences from the reference.

    Attributes:
        course: Of losses and gradient norms, each step.
        gradients: Of one step's gradients, over the largest entry of their tensor.
        weights: Of the weights after all steps, over the largest entry of their tensor; None:
            not compared.
    """

    course: float
    gradients: float
    weights: float | None


# FP32: sums of the same numbers in another order. About three times the largest difference over
# the 48 runs of the full matrix of test_parity on CPU ranks: 6e-7, 4e-6 and 7e-5 (weights: Adam
# enlarges the noise of entries whose gradient is small).
FP32 = Tolerance(course=2e-6, gradients=1.5e-5, weights=2e-4)
# BF16 against FP32: a digit of BF16 is 4e-3. Weights are not compared: Adam moves an entry whose
# gradient is below the noise by a whole step, this way or that.
BF16 = Tolerance(course=2e-2, gradients=1e-1, weights=None)


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """Engine and expert backend of the runs under test."""

    engine: str
    expert_backend: str

    @property
    def tolerance(self) -> Tolerance:
        """GPUs train in BF16, as `training.trainer.assemble` has it; CPU ranks in FP32."""
        return FP32 if self.engine == "cpu" else BF16

    def require(self, world: int) -> None:
        """Skip what needs more GPUs than there are."""
        if self.engine == "gpu":
            import torch

            if torch.cuda.device_count() < world:
                pytest.skip(f"needs {world} GPUs")

    def require_fp32(self) -> None:
        """Skip what only the exact arithmetic of CPU ranks can show."""
        if self.engine != "cpu":
            pytest.skip("needs FP32, which CPU ranks compute in")

    def on(self, job: dict[str, Any]) -> dict[str, Any]:
        """The same job on this hardware."""
        return {
            **job,
            "parallel": {**job.get("parallel", {}), "engine": self.engine},
            "model": {"expert_backend": self.expert_backend, **job.get("model", {})},
        }
