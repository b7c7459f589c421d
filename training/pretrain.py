"""Entry of one rank: take the resolved config from the launcher, build, train.

python -m genomoe.training.launch PRESET --data DIR --run DIR    (starts this on every rank)
"""

import ctypes
import json
import logging
import os
import signal
import sys
import time
import warnings
from pathlib import Path
from types import FrameType

INTERRUPTED = "interrupted; run the same command to go on"


def _interrupted(number: int, frame: FrameType | None) -> None:
    """Leave at once on Ctrl-C, wherever this rank is: a checkpoint is whole or absent."""
    if "TORCHELASTIC_ERROR_FILE" not in os.environ:  # else the launcher says it
        print(f"error: {INTERRUPTED}", file=sys.stderr, flush=True)
    os._exit(1)


if __name__ == "__main__":  # before the imports, which take seconds
    signal.signal(signal.SIGINT, _interrupted)

# megatron-core warns about every optional package that a plain install lacks.
warnings.filterwarnings("ignore", module=r"megatron\..*|torch\..*")
for name in ("megatron", "torch.utils.cpp_extension"):
    logging.getLogger(name).setLevel(logging.ERROR)

from genomoe.data.command_line import fail  # noqa: E402
from genomoe.data.dataset import DataSet  # noqa: E402
from genomoe.data.errors import InputError  # noqa: E402
from genomoe.data.json_codec import decode, encode  # noqa: E402
from genomoe.parallel import topology as ranks  # noqa: E402
from genomoe.training.config import PretrainConfig  # noqa: E402
from genomoe.training.run_folder import RunLock, write_config  # noqa: E402


def main() -> int:
    """Run one rank; returns the exit code."""
    _die_with_parent()
    try:
        config = decode(PretrainConfig, json.loads(sys.argv[1]))
        info = ranks.rank_info()
        if info.rank == 0:
            with RunLock(config.run):
                _run(config, info)
        else:
            _run(config, info)
    except InputError as error:
        return _tell(error, 2)
    except FloatingPointError as error:
        return _tell(error, 1)
    return 0


def _tell(error: Exception, code: int) -> int:
    """Say what was wrong: to the launcher of several ranks, which says it once for all of them."""
    reply = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if reply is None:
        fail(error)
    else:
        # With the code, since the launcher may end this rank before it has returned.
        content = {"message": str(error), "timestamp": int(time.time()), "code": code}
        Path(reply).write_text(json.dumps(content))
    return code


def _run(config: PretrainConfig, info: ranks.RankInfo) -> None:
    dataset = DataSet.open(config.data)
    topology = ranks.start(config.parallel, info)
    # These import megatron-core, which must come after the engine has been chosen.
    from genomoe.training.loop import train
    from genomoe.training.metrics import MetricsWriter
    from genomoe.training.resume import restore_run
    from genomoe.training.trainer import assemble

    trainer = assemble(config, dataset, topology)
    restore_run(trainer)
    if topology.is_main:
        write_config(config.run / "config.json", config)
        trainer.metrics = MetricsWriter(config.run, resume_iteration=trainer.state.iteration)
    state = train(trainer)
    if trainer.metrics is not None:
        trainer.metrics.close()
        summary = {"run": str(config.run), "iterations": trainer.total_iterations, **encode(state)}
        print(json.dumps(summary), flush=True)
    ranks.stop()


def _die_with_parent() -> None:
    """Ask the kernel (Linux) to end this rank when its launcher is killed.

    No orphan then goes on holding the run's lock.
    """
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL)


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    if status:
        # The process groups are still up, and their threads can abort an ordinary exit.
        os._exit(status)
