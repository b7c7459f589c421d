"""The training loop: read top to bottom.

Every rank runs it. One iteration: read this rank's rows of the global batch, take a step, log;
at intervals validate and save. What happens is a function of (config, data set, iteration), so a
run that was killed continues exactly where its last checkpoint stands.
"""

import time
from typing import Any

from genomoe.data.loader import rank_samples
from genomoe.data.tokenizer import PAD_ID
from genomoe.models.flops import count_parameters
from genomoe.training.batch import MicroBatch, to_micro_batch
from genomoe.training.config import num_microbatches
from genomoe.training.metrics import Progress, bits
from genomoe.training.optimizer import set_schedule
from genomoe.training.resume import save_run
from genomoe.training.step import StepResult, TrainStep
from genomoe.training.trainer import RunState, Trainer
from genomoe.training.validation import choose_windows, score_set_bits

# A validation counts as a gain only by more than this, so that noise does not keep a run alive.
MIN_GAIN_BITS = 0.001


def train(trainer: Trainer) -> RunState:
    """Train until the last iteration or until validation stops improving.

    Raises:
        FloatingPointError: If the loss is not finite, naming iteration and samples.
    """
    config, state = trainer.config.training, trainer.state
    total = trainer.total_iterations
    progress = Progress(
        total=total,
        start=state.iteration,
        enabled=trainer.topology.is_main,
        log=trainer.config.run / "train.log",
    )
    progress.say(headline(trainer))
    step = TrainStep(trainer.built, trainer.wrapped, trainer.optimizer, trainer.topology)
    for split in ("train", "valid"):
        trainer.score_sets[split] = choose_windows(
            trainer.dataset,
            split,
            width=trainer.config.rows.seq_length,
            count=config.eval_windows,
        )
    while state.iteration < total and not state.stopped_early:
        began = time.monotonic()
        rate = set_schedule(trainer.optimizer, trainer.config.optimizer, state.iteration, total)
        result = _take_step(trainer, step)
        state.iteration += 1
        state.consumed_samples += config.global_batch_size
        seconds = time.monotonic() - began
        record = _record(trainer, result, rate=rate, seconds=seconds)
        due = state.iteration % config.eval_interval == 0 or state.iteration == total
        improved = due and _validate(trainer, record, progress)
        _log(trainer, record, progress)
        last = state.iteration == total or state.stopped_early
        if improved or last or state.iteration % config.save_interval == 0:
            save_run(trainer)
    return state


def headline(trainer: Trainer) -> str:
    """One line: what is trained, where, and how long; or that nothing is left to do."""
    config, state, total = trainer.config, trainer.state, trainer.total_iterations
    if state.iteration >= total or state.stopped_early:
        return f"{config.run}: complete at iteration {state.iteration}; nothing left to train"
    count = count_parameters(config.model, trainer.dataset.tokenizer.vocab_size)
    ranks = trainer.topology.info.world_size
    return (
        f"training {count.total:,} parameters ({count.active:,} active) on {ranks} "
        f"{config.parallel.engine.upper()} rank(s), {config.parallel.wrap_for(ranks)}, "
        f"EP {config.parallel.expert_model_parallel_size}: {trainer.rows.num_rows:,} rows of "
        f"{config.rows.seq_length} an epoch, {total:,} iterations"
    )


def _take_step(trainer: Trainer, step: TrainStep) -> StepResult:
    batches = _load(trainer)
    try:
        return step(batches)
    except FloatingPointError as error:
        samples = [sample for batch in batches for sample in batch.samples]
        raise FloatingPointError(
            f"iteration {trainer.state.iteration + 1}: {error}; this rank's samples were "
            f"{samples[0]} to {samples[-1]}; lower optimizer.lr and run again"
        ) from None


def _load(trainer: Trainer) -> list[MicroBatch]:
    """Read this rank's rows of the next global batch."""
    topology = trainer.topology
    size, count = num_microbatches(trainer.config.training, topology.dp_size)
    table = rank_samples(
        trainer.state.consumed_samples, size, count, topology.dp_rank, topology.dp_size
    )
    return [
        to_micro_batch(
            trainer.rows.batch(samples), samples.tolist(), pad=PAD_ID, device=topology.device
        )
        for samples in table
    ]


def _record(trainer: Trainer, result: StepResult, *, rate: float, seconds: float) -> dict[str, Any]:
    state = trainer.state
    record: dict[str, Any] = {
        "iteration": state.iteration,
        "consumed_samples": state.consumed_samples,
        "epoch": state.consumed_samples / trainer.rows.num_rows,
        "loss_nats": result.loss,
        "loss_bits": None if result.loss is None else bits(result.loss),
        "grad_norm": result.grad_norm,
        "lr": rate,
        "tokens_per_second": result.num_tokens / seconds,
    }
    if result.balance is not None:
        record |= {
            "aux_loss": result.balance.aux_loss,
            "z_loss": result.balance.z_loss,
            "expert_load": result.balance.load,
            "router_entropy_nats": result.balance.entropy,
        }
    return record


def _validate(trainer: Trainer, record: dict[str, Any], progress: Progress) -> bool:
    """Score the fixed windows of both splits; returns whether validation improved."""
    config, state = trainer.config, trainer.state
    scores = {
        split: score_set_bits(
            trainer.wrapped,
            chosen,
            width=config.rows.seq_length,
            batch_size=config.training.micro_batch_size,
            topology=trainer.topology,
        )
        for split, chosen in trainer.score_sets.items()
    }
    valid = scores["valid"]
    record |= {"train_bits": scores["train"], "valid_bits": valid}
    improved = state.best_valid_bits is None or valid < state.best_valid_bits
    if improved:
        state.best_valid_bits, state.best_iteration = valid, state.iteration
    if state.gained_valid_bits is None or valid < state.gained_valid_bits - MIN_GAIN_BITS:
        state.gained_valid_bits, state.evals_without_gain = valid, 0
    else:
        state.evals_without_gain += 1
        limit = config.training.early_stop_evals
        state.stopped_early = bool(limit) and state.evals_without_gain >= limit
    unit = trainer.dataset.tokenizer.unit
    progress.say(
        f"    validation at epoch {record['epoch']:.1f}: train {scores['train']:.4f}, "
        f"valid {valid:.4f} bits/{unit}" + ("  (best so far)" if improved else "")
    )
    if state.stopped_early:
        progress.say(f"    stopped: no gain in {state.evals_without_gain} validations")
    return improved


def _log(trainer: Trainer, record: dict[str, Any], progress: Progress) -> None:
    if trainer.metrics is not None:
        trainer.metrics.write(record)
    iteration = record["iteration"]
    if iteration % trainer.config.training.log_interval == 0:
        loss = record["loss_bits"]
        shown = "nothing scored" if loss is None else f"train loss {loss:.4f} bits"
        progress.line(
            iteration,
            f"{shown}  grad {record['grad_norm']:.2f}  lr {record['lr']:.1e}  "
            f"{record['tokens_per_second']:,.0f} tokens/s",
        )
