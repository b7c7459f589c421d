import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest

from genomoe.data.dataset import DataSet
from genomoe.data.manifest import verify_shards
from genomoe.data.synthetic import markov_genome, markov_proteins, write_fasta

Build = Callable[..., DataSet]
_EXAMPLES = Path(__file__).parents[3] / "examples"
_PROGRAM = (sys.executable, "-m", "genomoe.data.preprocess")


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_the_example_genome(build: Build) -> None:
    dataset = build(_EXAMPLES / "helicobacter_pylori_g27.fasta.gz")
    manifest = dataset.manifest
    assert (manifest.records, manifest.letters) == (1, 1_652_982)
    assert manifest.inputs[0].sha256.startswith("80dd2ad4125b47fa")
    assert manifest.options.block_length == 20_000
    assert manifest.splits["test"].scored_tokens == 8 * 20_000
    assert manifest.splits["valid"].scored_tokens == 4 * 20_000
    assert manifest.splits["train"].tokens == 1_652_982 - 12 * 22_000
    verify_shards(dataset.folder, manifest, full=True)
    # Every build of this genome gives these bytes; a change is a new schema version.
    assert manifest.splits["train"].token_sha256[:16] == "651b0de14080e747"
    assert manifest.digest[:16] == "4d0ea21bf3cb3a3b"


def test_lambda_needs_and_gets_smaller_blocks(command: Callable, tmp_path: Path) -> None:
    phage = _EXAMPLES / "phage_lambda.fasta.gz"
    status, _, error = command(phage, "--out", tmp_path / "x")
    assert status == 2
    words = re.search(r"--block-length (\d+) --guard (\d+), lower", error)
    assert words is not None
    fix = ("--block-length", words[1], "--guard", words[2])
    assert command(phage, "--out", tmp_path / "x", *fix)[0] == 0


def test_bytes_depend_on_nothing_but_input_and_options(
    tmp_path: Path, genome: Path, proteome: Path, small_blocks: tuple[str, ...]
) -> None:
    second = write_fasta(tmp_path / "second.fa", [("d1", markov_genome(9000, 2, 6))])
    dna = (second, genome, *small_blocks, "--shard-bytes", "30000")
    protein = (proteome, "--alphabet", "protein", "--shard-bytes", "8000")
    for name, arguments, most_workers in (("dna", dna, "2"), ("protein", protein, "1")):
        found = []
        for workers, hash_seed in (("1", "1"), (most_workers, "2")):
            out = tmp_path / f"{name}{hash_seed}"
            subprocess.run(
                [*_PROGRAM, *arguments, "--out", out, "--workers", workers],
                env={**os.environ, "PYTHONHASHSEED": hash_seed, "TZ": f"UTC{hash_seed}"},
                check=True,
                capture_output=True,
                timeout=60,
            )
            found.append(contents(out))
        assert found[0] == found[1]
        assert len(found[0]) > 10


def test_compression_does_not_change_what_is_stored(build: Build, tmp_path: Path) -> None:
    records = [("a", markov_genome(60_000, 2, 1)), ("b", "nnnn" + markov_genome(9000, 2, 2))]
    paths = [
        write_fasta(tmp_path / name, records, width)
        for name, width in (("x.fa", 60), ("y.fa.gz", 0), ("z.fa.gz", 71))
    ]
    options = ("--block-length", 1000, "--guard", 100)
    sets = [build(path, *options, out=path.stem) for path in paths]
    hashes = [[s.manifest.splits[x].token_sha256 for x in s.manifest.splits] for s in sets]
    assert hashes[0] == hashes[1] == hashes[2]


def test_letters_add_up(build: Build, tmp_path: Path) -> None:
    genome = markov_genome(80_000, 2, 1)
    records = [
        ("good", genome[:50_000] + "N" * 500 + genome[50_000:50_100] + "N" * 20 + genome[50_100:]),
        ("short", "ACGT" * 100),
        ("empty", ""),
        ("murky", "RYKM" * 500),
        ("soft", genome[:2000].lower()),
    ]
    manifest = build(
        write_fasta(tmp_path / "x.fa", records), "--block-length", 1000, "--guard", 100
    ).manifest
    stored = sum(split.tokens for split in manifest.splits.values())
    assert stored + sum(manifest.dropped_letters.values()) == manifest.letters
    assert manifest.dropped == {
        "ambiguous_pieces": 1,
        "empty_records": 1,
        "short_pieces": 1,
        "short_records": 1,
    }
    assert manifest.dropped_letters == {
        "ambiguous_pieces": 2000,
        "gaps": 520,
        "short_pieces": 100,
        "short_records": 400,
    }
    assert manifest.inputs[0].mask_dropped_records == 1
    assert sum(manifest.inputs[0].letters.values()) == manifest.letters
    assert sum(split.soft_masked_tokens for split in manifest.splits.values()) == 0


def test_proteins_by_records(command: Callable, tmp_path: Path, proteome: Path) -> None:
    out = tmp_path / "out"
    status, summary, error = command(proteome, "--alphabet", "protein", "--out", out)
    assert status == 0
    assert "HOMOLOGUES STRADDLE" in error
    assert json.loads((out / "manifest.json").read_bytes())["warning"] == "HOMOLOGUES STRADDLE"
    assert summary["warning"] == "HOMOLOGUES STRADDLE"
    assert sum(split["documents"] for split in summary["splits"].values()) == 200


def test_both_strands_of_a_sequence_fall_into_one_split(build: Build, tmp_path: Path) -> None:
    turn = str.maketrans("ACGT", "TGCA")
    genomes = [markov_genome(1500, 2, seed) for seed in range(60)]
    records = [(f"f{i}", g) for i, g in enumerate(genomes)]
    records += [(f"r{i}", g.translate(turn)[::-1]) for i, g in enumerate(genomes)]
    dataset = build(write_fasta(tmp_path / "x.fa", records), "--split", "records")
    home = {p.record_id: split for split in dataset.manifest.splits for p in dataset.pieces(split)}
    assert all(home[f"f{i}"] == home[f"r{i}"] for i in range(60))
    assert dataset.manifest.warning is None
    assert dataset.manifest.options.block_length is None


def test_a_records_split_stays_when_files_are_added(build: Build, tmp_path: Path) -> None:
    proteins = [(f"p{i}", s) for i, s in enumerate(markov_proteins(300, 40, 2))]
    one = write_fasta(tmp_path / "one.fa", proteins[:150])
    two = write_fasta(tmp_path / "two.fa", proteins[150:])
    homes = []
    for number, paths in enumerate([(one,), (two, one)]):
        dataset = build(*paths, "--alphabet", "protein", out=f"out{number}")
        homes.append(
            {p.record_id: split for split in dataset.manifest.splits for p in dataset.pieces(split)}
        )
    assert homes[0].items() <= homes[1].items()


def test_files_of_one_name_are_told_apart(
    build: Build, tmp_path: Path, small_blocks: tuple[str, ...]
) -> None:
    paths = []
    for number in range(3):
        folder = tmp_path / f"genome{number % 2}" / "x" if number < 2 else tmp_path
        folder.mkdir(parents=True, exist_ok=True)
        name = "same.fa" if number < 2 else "other.fa"
        paths.append(write_fasta(folder / name, [(f"r{number}", markov_genome(20_000, 2, number))]))
    dataset = build(*paths, *small_blocks)
    assert [i.name for i in dataset.manifest.inputs] == [
        "genome0/x/same.fa",
        "genome1/x/same.fa",
        "other.fa",
    ]
    files = {piece.file for split in dataset.manifest.splits for piece in dataset.pieces(split)}
    assert files == {"genome0/x/same.fa", "genome1/x/same.fa", "other.fa"}


def test_rna_shares_the_ids_of_dna(
    build: Build, tmp_path: Path, small_blocks: tuple[str, ...]
) -> None:
    genome = markov_genome(40_000, 2, 1)
    dna = build(write_fasta(tmp_path / "d.fa", [("a", genome)]), *small_blocks, out="dna")
    rna_file = write_fasta(tmp_path / "r.fa", [("a", genome.replace("T", "u"))])
    rna = build(rna_file, "--alphabet", "rna", *small_blocks, out="rna")
    for split in dna.manifest.splits:
        assert dna.manifest.splits[split].token_sha256 == rna.manifest.splits[split].token_sha256
    assert dna.manifest.tokenizer_fingerprint != rna.manifest.tokenizer_fingerprint


def test_a_dry_run_tells_the_plan_and_leaves_nothing(
    command: Callable, tmp_path: Path, genome: Path, small_blocks: tuple[str, ...]
) -> None:
    out = tmp_path / "sets" / "out"
    status, plan, _ = command(genome, *small_blocks, "--out", out, "--dry-run")
    assert status == 0
    assert list(tmp_path.iterdir()) == []
    _, done, _ = command(genome, *small_blocks, "--out", out)
    for split, figures in plan["splits"].items():
        actual = done["splits"][split]
        assert 0.3 < figures.pop("disk_bytes") / actual.pop("disk_bytes") < 3
        assert figures == actual
    assert command(genome, *small_blocks, "--out", out, "--dry-run")[0] == 0


def test_force_replaces_a_data_set(
    command: Callable, tmp_path: Path, genome: Path, small_blocks: tuple[str, ...]
) -> None:
    out = tmp_path / "out"
    for seed in ("1", "2"):
        assert command(genome, *small_blocks, "--out", out, "--seed", seed, "--force")[0] == 0
        assert DataSet.open(out).manifest.options.seed == int(seed)
    before = contents(out)
    broken = write_fasta(tmp_path / "b.fa", [("a", "AC-GT")])
    assert command(broken, "--out", out, "--force")[0] == 2
    assert contents(out) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.fa", "out"]


def _write_until_read(pipe: BinaryIO, folder: Path) -> None:
    """Give the reader something to begin with, and wait until it has begun."""
    pipe.write(b">a\nACGT")
    pipe.flush()
    deadline = time.monotonic() + 20
    while not list(folder.glob(".out.partial-*/spool/*.tokens")):
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("workers", ["1", "2"])
def test_signals_leave_nothing_behind(tmp_path: Path, number: signal.Signals, workers: str) -> None:
    # Pipes that nobody writes to any more hold the readers in the middle of their files.
    pipes = [tmp_path / "a.fa", tmp_path / "b.fa"]
    for pipe in pipes:
        os.mkfifo(pipe)
    process = subprocess.Popen(
        [*_PROGRAM, *pipes, "--out", tmp_path / "sets" / "out", "--workers", workers],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with pipes[0].open("wb") as pipe:
        _write_until_read(pipe, tmp_path / "sets")
        process.send_signal(number)
        _, error = process.communicate(timeout=20)
    assert error == "interrupted; nothing was written\n"
    assert process.returncode == 128 + number
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.fa", "b.fa"]


def test_what_a_killed_run_left_is_removed(
    command: Callable, tmp_path: Path, genome: Path, small_blocks: tuple[str, ...]
) -> None:
    pipe = tmp_path / "a.fa"
    os.mkfifo(pipe)
    arguments = [*_PROGRAM, pipe, "--out", tmp_path / "out"]
    process = subprocess.Popen(arguments, stderr=subprocess.DEVNULL)
    with pipe.open("wb") as file:
        _write_until_read(file, tmp_path)
        # Alive, it is left alone.
        assert command(genome, *small_blocks, "--out", tmp_path / "out")[0] == 0
        assert len(list(tmp_path.glob(".out.partial-*"))) == 1
        process.kill()
        process.wait()
    assert len(list(tmp_path.glob(".out.partial-*"))) == 1
    assert command(genome, *small_blocks, "--out", tmp_path / "out", "--force")[0] == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.fa", "out"]


def test_the_disk_is_asked_before_it_is_filled(
    command: Callable,
    tmp_path: Path,
    genome: Path,
    small_blocks: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("genomoe.data.pipeline.shutil.disk_usage", lambda _: usage)
    status, _, error = command(genome, *small_blocks, "--out", tmp_path / "out")
    assert status == 2
    assert re.fullmatch(
        r"error: --out .*out: the data set takes about \d+ bytes and 1000 .*\n", error
    )
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_one_line(
    command: Callable, tmp_path: Path, genome: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device", "x.tar")

    monkeypatch.setattr("genomoe.data.writing.write_shard", fail)
    options = ("--block-length", "1000", "--guard", "100")
    status, _, error = command(genome, *options, "--out", tmp_path / "out")
    assert (status, error) == (1, "error: x.tar: No space left on device; nothing was written\n")
    assert list(tmp_path.iterdir()) == []


def test_help_names_units(command: Callable, capsys: pytest.CaptureFixture[str]) -> None:
    from genomoe.data.preprocess import main

    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    for word in ("--block-length", "letters", "bytes", "Exit status"):
        assert word in text


def _peak_megabytes(path: Path, out: Path) -> float:
    # Not getrusage: its figure starts at the size of the process that made the child.
    code = (
        "import pathlib, re, sys; from genomoe.data.preprocess import main; main(sys.argv[1:]);"
        "status = pathlib.Path('/proc/self/status').read_text();"
        "print(re.search(r'VmHWM:\\s+(\\d+) kB', status)[1], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, path, "--out", out, "--workers", "1"],
        check=True,
        capture_output=True,
        text=True,
    )
    return int(done.stderr.splitlines()[-1]) / 1024


def _soft_masked_contig(path: Path, megabases: int) -> Path:
    stretch = markov_genome(1_000_000, 2, 1).replace("CA", "ca").encode()
    with path.open("wb") as file:
        file.write(b">contig\n")
        for _ in range(megabases):
            file.write(stretch)
    return path


def test_memory_does_not_grow_with_a_contig(tmp_path: Path) -> None:
    peaks = [
        _peak_megabytes(_soft_masked_contig(tmp_path / f"{size}.fa", size), tmp_path / f"out{size}")
        for size in (4, 40)
    ]
    assert peaks[1] - peaks[0] < 60


@pytest.mark.slow
def test_memory_of_a_large_contig(tmp_path: Path) -> None:
    contig = _soft_masked_contig(tmp_path / "x.fa", 300)
    assert _peak_megabytes(contig, tmp_path / "out") < 400
