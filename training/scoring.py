"""Score letters with a model: nats of each, whatever the batch size and the number of ranks."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.distributed as dist

from genomoe.data.windows import Window, window_rows
from genomoe.parallel.topology import Topology


@torch.no_grad()
def score_windows(
    model: torch.nn.Module,
    letters: Sequence[np.ndarray],
    windows: Sequence[Window],
    *,
    width: int,
    batch_size: int,
    bos: int,
    pad: int,
    topology: Topology,
    progress: Callable[[int], None] = lambda rows: None,
) -> np.ndarray:
    """Compute the negative log-likelihood of every scored letter; all ranks call this.

    Args:
        model: In its wrapper; put into evaluation mode here and back as it was.
        letters: Token ids of each piece.
        windows: From `plan_windows`.
        width: Row width in tokens.
        batch_size: Rows of one forward pass on one rank.
        bos: Id that starts a row.
        pad: Id that fills it.
        topology: Process groups; the windows are shared out over the data-parallel ranks.
        progress: Told the rows that each pass finished.

    Returns:
        Nats, FP32, one for each scored letter in the order of the windows; the same on all ranks.
    """
    counts = np.array([w.end - w.scored for w in windows], dtype=np.int64)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    nll = torch.zeros(int(offsets[-1]), dtype=torch.float32)
    rank, ranks = topology.dp_rank, topology.dp_size
    was_training = model.training
    model.eval()
    for first in range(0, len(windows), batch_size * ranks):
        mine = range(first + rank, min(first + batch_size * ranks, len(windows)), ranks)
        # Every rank makes every pass (the experts of others wait for it): an idle one repeats
        # the first window and throws the result away.
        batch = [windows[i] for i in mine] or [windows[0]]
        tokens, labels = window_rows(letters, batch, width=width, bos=bos, pad=pad)
        losses = _forward(model, tokens, labels, topology.device)
        for row, index in enumerate(mine):
            item = windows[index]
            part = losses[row, item.scored - item.start : item.end - item.start]
            nll[int(offsets[index]) : int(offsets[index + 1])] = part
        progress(min(batch_size * ranks, len(windows) - first))
    model.train(was_training)
    if ranks > 1:
        # Every letter was filled by one rank and is zero elsewhere: the sum is exact.
        on_device = nll.to(topology.device)
        dist.all_reduce(on_device, group=topology.groups.dp)
        nll = on_device.cpu()
    return nll.numpy()


def _forward(
    model: torch.nn.Module, tokens: np.ndarray, labels: np.ndarray, device: torch.device
) -> torch.Tensor:
    ids = torch.from_numpy(tokens).to(device)
    targets = torch.from_numpy(labels).to(device)
    return model(ids, None, None, labels=targets).float().cpu()
