"""Models of the size that people train: ``python -m benchmarks.large [--folder F] [MODEL ...]``.

A model is made from its configuration, tensor by tensor, as a safetensors file. Each measurement is a process
of its own: the guard on the file; a capture of rounds of updates over it (the base by reference where the
clients train adapters); and what a replay reads of that capture: every message examined, then each update as
the view of an attack. Memory is the peak of the process.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import torch
from torch import Tensor

from glasshouse.api.guard import guard
from glasshouse.executors.base import peak_memory
from glasshouse.process import prepare_process
from glasshouse.store import TensorFile, write_tensors
from glasshouse.tensors import Lazy, check_finite, copy_to
from glasshouse.transcript.cut import cut
from glasshouse.transcript.files import TranscriptWriter, read_transcript
from glasshouse.transcript.grants import Grants
from glasshouse.transcript.record import Keep
from glasshouse.transcript.reference import BASES
from glasshouse.transcript.threat import Threat
from glasshouse.wire import Architecture, Broadcast, Terms, Update

Shapes = Mapping[str, tuple[int, ...]]


@final
@dataclass(frozen=True, kw_only=True)
class Model:
    """What is measured.

    Attributes:
        base: the tensors that clients receive.
        trained: those that they send.
        dtype: of the base; updates are float32 and stored in bfloat16.
        updates: in the capture.
    """

    base: Shapes
    trained: Shapes
    dtype: torch.dtype
    updates: int


def gpt2(*, width: int = 1024, layers: int = 24, vocabulary: int = 50257, length: int = 1024) -> Shapes:
    """GPT-2 medium."""
    shapes: dict[str, tuple[int, ...]] = {"wte.weight": (vocabulary, width), "wpe.weight": (length, width)}
    for layer in range(layers):
        h = f"h.{layer}."
        for norm in ("ln_1", "ln_2"):
            shapes |= {f"{h}{norm}.weight": (width,), f"{h}{norm}.bias": (width,)}
        for name, inner, outer in (
            ("attn.c_attn", width, 3 * width),
            ("attn.c_proj", width, width),
            ("mlp.c_fc", width, 4 * width),
            ("mlp.c_proj", 4 * width, width),
        ):
            shapes |= {f"{h}{name}.weight": (inner, outer), f"{h}{name}.bias": (outer,)}
    return shapes | {"ln_f.weight": (width,), "ln_f.bias": (width,)}


def llama(*, width: int = 2048, layers: int = 22, inner: int = 5632, vocabulary: int = 32000) -> Shapes:
    """A Llama of 1.1 billion numbers (TinyLlama's configuration: 32 heads, 4 of them for keys and values)."""
    shapes: dict[str, tuple[int, ...]] = {"embed_tokens.weight": (vocabulary, width)}
    for layer in range(layers):
        h, small = f"layers.{layer}.", width // 8
        shapes |= {f"{h}self_attn.{n}_proj.weight": (width, width) for n in "qo"}
        shapes |= {f"{h}self_attn.{n}_proj.weight": (small, width) for n in "kv"}
        shapes |= {f"{h}mlp.{n}_proj.weight": (inner, width) for n in ("gate", "up")}
        shapes |= {f"{h}mlp.down_proj.weight": (width, inner)}
        shapes |= {f"{h}{n}_layernorm.weight": (width,) for n in ("input", "post_attention")}
    return shapes | {"norm.weight": (width,), "lm_head.weight": (vocabulary, width)}


def adapters(base: Shapes, *, rank: int = 8) -> Shapes:
    """LoRA on queries and values."""
    chosen = {n: s for n, s in base.items() if n.endswith(("q_proj.weight", "v_proj.weight"))}
    down = {n.replace(".weight", ".lora_A.weight"): (rank, s[1]) for n, s in chosen.items()}
    return down | {n.replace(".weight", ".lora_B.weight"): (s[0], rank) for n, s in chosen.items()}


MODELS: Final = {
    "gpt2-medium": Model(base=gpt2(), trained=gpt2(), dtype=torch.float32, updates=2),
    "lora-1.1b": Model(base=llama(), trained=adapters(llama()), dtype=torch.bfloat16, updates=100),
}


def drawn(shapes: Shapes, seed: int, dtype: torch.dtype = torch.float32) -> Lazy:
    """Weights as a fresh model has them; each is drawn when it is asked for."""

    def make(name: str) -> Tensor:
        rng = torch.Generator().manual_seed(hash_of(f"{seed}/{name}"))
        shape = shapes[name]
        return (torch.randn(shape, generator=rng) * 0.02 + (len(shape) == 1)).to(dtype)

    return Lazy(lambda: shapes, make, lambda: 0)


def hash_of(text: str) -> int:
    """A number for a text, the same in every process."""
    return int.from_bytes(text.encode(), "little") % (2**31 - 1)


def measure_guard(model: Model, folder: Path) -> dict[str, float]:
    """The guard on the file of the base."""
    del model
    started = time.perf_counter()
    seen = guard(folder / "bases" / "base.safetensors")
    assert not seen.findings, seen.findings
    sizes = [e.end - e.begin for e in TensorFile(folder / "bases" / "base.safetensors").entries.values()]
    return {
        "seconds": time.perf_counter() - started,
        "file_mb": sum(sizes) / 1e6,
        "largest_mb": max(sizes) / 1e6,
    }


def measure_capture(model: Model, folder: Path) -> dict[str, float]:
    """Recording one broadcast and the updates, as a capture does."""
    base = folder / "bases" / "base.safetensors"
    frozen = model.trained != model.base
    received = TensorFile(base).lazy()
    sent = drawn(model.trained, 0).over(received) if frozen else received
    keep = Keep(rounded="bfloat16", base=base if frozen else None)
    writer = TranscriptWriter(folder=folder / "transcript", keep=keep)
    agreed = Architecture.of("mlp", (1, 8, 8), 10)  # stands in the index; nothing builds it here
    writer.terms(
        Terms(protocol="fedavg", architecture=agreed, sends="delta", clients=100, cohort=1, batch_size=1)
    )
    writer.append(Broadcast(round=0, architecture=agreed, tensors=sent))
    seconds = 0.0
    for client in range(model.updates):
        tensors = drawn(model.trained, client + 1)
        update = Update(round=0, client=client, kind="delta", tensors=tensors, examples=1)
        started = time.perf_counter()
        writer.append(update)
        seconds += time.perf_counter() - started
    disk = sum(path.stat().st_size for path in (folder / "transcript").iterdir())
    return {"seconds_an_update": seconds / model.updates, "disk_mb": disk / 1e6}


def measure_replay(model: Model, folder: Path) -> dict[str, float]:
    """Reading the capture again: every tensor once, then each update as an attack's view."""
    os.environ[BASES] = str(folder / "bases")
    started = time.perf_counter()
    transcript = read_transcript(folder / "transcript")
    for message in (message for record in transcript.rounds for message in record.messages()):
        assert isinstance(message, Broadcast | Update)
        for name in message.tensors:
            check_finite({name: message.tensors[name]}, subject=name)
    walked = time.perf_counter() - started
    started = time.perf_counter()
    for client in range(model.updates):
        seen = cut(transcript, threat=Threat(), grants=Grants(), own={}, memory={}, rounds=[0], client=client)
        view = copy_to(seen, "cpu")
        update = view.single(subject="a replay")[1]
        for name in update.tensors:
            update.tensors[name].norm()
    spent = time.perf_counter() - started
    return {"examined_seconds": walked, "seconds_an_update": spent / model.updates}


def make(model: Model, folder: Path) -> dict[str, float]:
    """The file of the base."""
    write_tensors(folder / "bases" / "base.safetensors", drawn(model.base, 0, model.dtype))
    return {"numbers": float(sum(math.prod(shape) for shape in model.base.values()))}


STEPS: Final = {"make": make, "guard": measure_guard, "capture": measure_capture, "replay": measure_replay}


def rows(name: str, folder: Path) -> Iterator[dict[str, object]]:
    """Measure one model in processes of its own; its files lie in ``folder``."""
    for step in STEPS:
        command = [sys.executable, "-m", "benchmarks.large", "--folder", str(folder), "--step", step, name]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        yield {"model": name, "step": step, **json.loads(said.splitlines()[-1])}


def main() -> None:
    """Print one JSON line for every step of every model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--folder", type=Path, help="where files lie; default: a temporary one")
    parser.add_argument("--step", choices=list(STEPS))
    arguments = parser.parse_args()
    if arguments.step:
        prepare_process()
        idle = peak_memory()
        found = STEPS[arguments.step](MODELS[arguments.models[0]], arguments.folder)
        print(json.dumps({**found, "peak_mb": peak_memory(), "idle_mb": idle}))
        return
    for name in arguments.models or MODELS:
        with tempfile.TemporaryDirectory(dir=arguments.folder) as place:
            for row in rows(name, Path(place)):
                print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
