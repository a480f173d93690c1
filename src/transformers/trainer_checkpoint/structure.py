# Copyright 2026 The HuggingFace Team. All rights reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""What a checkpoint directory shows of itself without a manifest: which state is inside, and evidence of damage.

Evidence is positive or it is none: a file that contradicts itself, or names another one that is not there. A layout
that nobody here knows is not damaged. Nothing is unpickled: a checkpoint may come from someone else.

| what is found | when it is evidence of damage |
| --- | --- |
| an empty file | when no file of its kind can be empty (`_never_empty`): JSON, weights, state. Others can be |
| `trainer_state.json`, `config.json` and the like | it is no JSON object; the step in it is no number |
| `*.index.json` | it is no JSON, or it names a shard that is not there |
| `model-00001-of-00003.*` | there is no index, nor weights in one file |
| `*.safetensors` | the header is no header, or its tensors do not end where the file ends |
| a torch file | it is a zip archive without the record at its end, or starts like no file of torch's at all |
| a directory with `.distcp` files | `.metadata` missing or torn, or it names a file that is not there |
| `latest` (DeepSpeed) | the folder it names is not there; or the other way round; or that folder holds no model |
| `rng_state_<rank>.pth`, `rank<r>-of-<n>-optimizer.pt`, ZeRO's files | ranks are missing, see `told_world_size` |
| a link | it leads out of the checkpoint: refused. Only the Hub's own cache is built of such links |

Two more signs are read by `discovery`, because a checkpoint that is just being sealed may show them: the sentinel, and
no `trainer_state.json` at all.
"""

import dataclasses
import json
import os
import pickletools
import re
import stat
import zipfile
from collections.abc import Callable, Iterable

from . import disk
from .layout import FILE_LIST_PATTERN, MANIFEST_NAME, TEMPORARY_SUFFIX, TRAINER_STATE_NAME
from .manifest import is_safe_name


# The largest JSON header safetensors itself accepts (bytes).
MAX_SAFETENSORS_HEADER = 100_000_000
# A pickle that is scanned for names of files and numbers of ranks is not read beyond this (bytes).
MAX_SCANNED_PICKLE = 256 << 20

REFUSED_LINK = "is a link that leads out of the checkpoint, which is refused"

STATES = ("model", "optimizer", "scheduler", "scaler", "rng", "trainer")

_ZIP_START = b"PK\x03\x04"
_ZIP_END = b"PK\x05\x06"
_ZIP_END_SIZE = 22
# A pickle of protocol 2 or later, which is how torch's older format starts.
_PICKLE_START = b"\x80"
_TAR_MAGIC_AT = 257

# Files that torch writes, by the names that the Trainer, accelerate, PEFT and DeepSpeed give them. Another tool's
# `.bin` may hold anything.
_TORCH_FILE = re.compile(
    r"^(pytorch_model.*\.bin|adapter_model\.bin|training_args\.bin|optimizer\.(pt|bin)|scheduler\.pt|scaler\.pt"
    r"|rng_state(_\d+)?\.pth|rank\d+-of-\d+-optimizer\.pt|.*_(model|optim)_states\.pt)$"
)
# Text that the library itself writes as JSON, beside configurations and indices.
JSON_TEXTS = frozenset(
    {
        "config.json",
        "tokenizer.json",
        "added_tokens.json",
        "special_tokens_map.json",
        "vocab.json",
        "chat_template.json",
        "modules.json",
    }
)
# A rank has at most five digits here: a name is somebody else's text, and a range up to it is built.
_RNG = re.compile(r"^rng_state_(\d{1,5})\.pth$")
_XLA = re.compile(r"^rank(\d{1,5})-of-(\d{1,5})-optimizer\.pt$")
_ZERO_OPTIMIZER = re.compile(r"^(?:bf16_)?zero_pp_rank_(\d{1,5})_mp_rank_(\d{1,5})_optim_states\.pt$")
_ZERO_MODEL = re.compile(r"^zero_pp_rank_(\d{1,5})_mp_rank_(\d{1,5})_model_states\.pt$")
# The key as a pickle holds it: the opcode of a string, its length, the string.
_PARTITION_COUNT = re.compile(rb"(?:X\x0f\0\0\0|\x8c\x0f)partition_count")
_DISTCP = re.compile(rb"__\d+_\d+\.distcp")
_DISTCP_METADATA = ".metadata"
_DEEPSPEED_LATEST = "latest"
_DEEPSPEED_FOLDER = re.compile(r"^global_step\d+$")
_MODEL_FILE = re.compile(
    r"^(model\.safetensors|pytorch_model\.bin|adapter_model\.(safetensors|bin)"
    r"|(model\.safetensors|pytorch_model\.bin)\.index\.json|pytorch_model_fsdp\.bin)$"
)
_SHARD = re.compile(r"^(model|pytorch_model)-\d{5}-of-\d{5}\.(safetensors|bin)$")
_ADAPTER_FILE = re.compile(r"^adapter_model\.(safetensors|bin)$")
_OPTIMIZER_FILE = re.compile(r"^(optimizer\.(pt|bin)|optimizer\.pt_.*|rank\d+-of-\d+-optimizer\.pt)$")


@dataclasses.dataclass(frozen=True)
class Problem:
    """What is wrong with one file of a checkpoint.

    Args:
        file (`str`):
            Its path in the checkpoint, with `/`.
        reason (`str`):
            The rest of a sentence that starts with `file`.
        unreadable (`bool`):
            It could not be looked at, which says nothing about what is in it.
    """

    file: str
    reason: str
    unreadable: bool = False

    def __str__(self) -> str:
        return f"{self.file} {self.reason}"


def unreadable(name: str, error: OSError) -> Problem:
    return Problem(name, f"cannot be read ({error.strerror or error})", unreadable=True)


# ---- Questions others ask ----


def check_structure(path: str | os.PathLike, *, world_size: int | None = None) -> list[str]:
    """Positive evidence that the checkpoint at `path` is damaged; an empty list if there is none.

    Reads the ends and headers of files, never their bulk, and changes nothing. May run on any rank.

    Args:
        path (`str` or `os.PathLike`):
            A checkpoint directory, with or without a manifest (which is not looked at).
        world_size (`int`, *optional*):
            How many ranks saved onto this disk, where that is known: then files of every one of them must be there.
            Without it only gaps count: a node with a disk of its own holds a run of ranks that starts anywhere.

    Returns:
        `list[str]`: one text for each piece of evidence; each starts with the name of a file in the checkpoint.

    Raises:
        `OSError`: if `path` is not a directory, or cannot be listed. A file inside that cannot be read is evidence.
    """
    return [str(problem) for problem in find_damage(path, world_size=world_size)]


def find_damage(path: str | os.PathLike, *, world_size: int | None = None) -> list[Problem]:
    """`check_structure` as [`Problem`]s."""
    path = os.fspath(path)
    files = dict(disk.walk_files(path))
    problems = _check_links(path, files)
    for name, info in files.items():
        if stat.S_ISREG(info.st_mode):
            problem = check_file(path, name, info.st_size)
            if problem is not None:
                problems.append(problem)
    problems += _check_shards(files)
    problems += _check_distcp(path, files)
    problems += _check_deepspeed(path, files)
    missing = _gaps(files) if world_size is None else _rank_files(path, set(files), world_size) - set(files)
    problems += [Problem(name, "is missing") for name in sorted(missing)]
    return problems


def state_inside(path: str | os.PathLike | Iterable[str]) -> tuple[str, ...]:
    """Which of `STATES` a checkpoint holds, in that order, told from the names of its files.

    DeepSpeed's own folder counts as model and optimizer. A scheduler that DeepSpeed itself drives lies in there too and
    leaves no file of its own, so `"scheduler"` is said only of a `scheduler.pt`.

    Args:
        path (`str`, `os.PathLike` or `Iterable[str]`):
            A checkpoint directory, or the relative names (with `/`) of the files in one.
    """
    names = _names(path)
    found = set()
    for name in names:
        folder, _, base = name.rpartition("/")
        if folder == "":
            if _MODEL_FILE.match(base):
                found.add("model")
            if _OPTIMIZER_FILE.match(base):
                found.add("optimizer")
            if base == "rng_state.pth" or _RNG.match(base):
                found.add("rng")
            if base in ("scheduler.pt", "scaler.pt"):
                found.add(base.removesuffix(".pt"))
            if base == TRAINER_STATE_NAME:
                found.add("trainer")
        elif "/" not in folder:
            if _ADAPTER_FILE.match(base) or folder.startswith("pytorch_model_fsdp"):
                found.add("model")
            if folder.startswith("optimizer"):
                found.add("optimizer")
            if _DEEPSPEED_FOLDER.match(folder):
                found.update(("model", "optimizer"))
    return tuple(state for state in STATES if state in found)


def expected_rank_files(path: str | os.PathLike | Iterable[str], world_size: int) -> list[str]:
    """Names of per-rank files that are missing for a checkpoint that `world_size` ranks saved, sorted.

    Only kinds of which at least one file is there are counted: a checkpoint without any RNG state was saved without.

    Args:
        path (`str`, `os.PathLike` or `Iterable[str]`):
            A checkpoint directory, or the relative names (with `/`) of the files in one.
        world_size (`int`):
            Number of ranks that saved.
    """
    names = set(_names(path))
    root = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
    return sorted(_rank_files(root, names, world_size) - names)


def told_world_size(path: str | os.PathLike) -> int | None:
    """How many ranks saved the checkpoint at `path`, as far as its files tell; `None` if they do not.

    XLA's files carry the number in their names, ZeRO's hold it, and RNG states are numbered. It is not told where rank
    0 has left nothing: that is the disk of a later node, and the other ranks' files are elsewhere.
    """
    names = set(_names(path))
    told = {1 + rank for rank in _ranks(_RNG, names)} | {
        int(match.group(2)) for name in names if (match := _XLA.match(name))
    }
    first = {0} & (_ranks(_RNG, names) | _ranks(_XLA, names))
    for folder in _deepspeed_folders(names):
        for name in sorted(names):
            match = _ZERO_OPTIMIZER.match(name.removeprefix(f"{folder}/"))
            if match:
                first |= {0} & {int(match.group(1))}
                told.add(_partition_count(os.path.join(path, name)) or 1)
                break
    return max(told) if told and first else None


def check_file(root: str, name: str, size: int) -> Problem | None:
    """What is evidently wrong with the regular file `name`, of `size` bytes, in the checkpoint `root`."""
    base = name.rpartition("/")[2]
    if size == 0:
        return Problem(name, "is empty") if _never_empty(base) else None
    check: Callable[[str, str, int], str | None]
    if name == TRAINER_STATE_NAME:
        check = _trainer_state
    elif base.endswith(".index.json"):
        check = _index
    elif base == "config.json" or base.endswith("_config.json"):
        check = _config
    elif base.endswith(".safetensors"):
        check = _safetensors
    elif base.endswith((".bin", ".pt", ".pth", ".ckpt")):
        check = _torch_file
    elif base.endswith(".distcp"):
        check = _distcp_file
    else:
        return None
    try:
        reason = check(root, name, size)
    except OSError as error:
        return unreadable(name, error)
    return None if reason is None else Problem(name, reason)


def _never_empty(base: str) -> bool:
    """Whether a file of this name holds something in every checkpoint. Somebody's own `notes.pt` need not."""
    if TEMPORARY_SUFFIX in base:
        return False
    return (
        base in JSON_TEXTS
        or base == TRAINER_STATE_NAME
        or base.endswith(("_config.json", ".index.json", ".safetensors"))
        or base in (_DISTCP_METADATA, _DEEPSPEED_LATEST, "vocab.txt", "merges.txt", "tokenizer.model", "spiece.model")
        or _TORCH_FILE.match(base) is not None
    )


def leaves(root: str, name: str) -> bool:
    """Whether the link `name` inside the checkpoint `root` leads out of it.

    The Hub's cache is built of links from `snapshots/<revision>/...` to `blobs/`: those may be followed.
    """
    here = os.path.realpath(root)
    target = os.path.realpath(os.path.join(here, name))
    allowed = [here]
    parts = here.split(os.sep)
    if "snapshots" in parts:
        last = len(parts) - 1 - parts[::-1].index("snapshots")
        allowed.append(os.sep.join([*parts[:last], "blobs"]))
    return not any(target == place or target.startswith(place.rstrip(os.sep) + os.sep) for place in allowed)


# ---- One file ----


def _trainer_state(root: str, name: str, size: int) -> str | None:
    state, reason = _json_object(root, name)
    if state is not None and not isinstance(state.get("global_step", 0), int):
        return f"holds {state['global_step']!r} as its step"
    return reason


def _config(root: str, name: str, size: int) -> str | None:
    return _json_object(root, name)[1]


def _index(root: str, name: str, size: int) -> str | None:
    index, reason = _json_object(root, name)
    if index is None:
        return reason
    shards = index.get("weight_map")
    if not isinstance(shards, dict):
        return "has no `weight_map`" if name.rpartition("/")[2].startswith(("model.", "pytorch_model.")) else None
    folder = name.rpartition("/")[0]
    for shard in sorted({str(shard) for shard in shards.values()}):
        if not is_safe_name(shard):
            return f"names {shard!r}, which is not a plain path inside the checkpoint"
        if not os.path.isfile(os.path.join(root, folder, shard)):
            return f"names {os.path.join(folder, shard)}, which is missing"
    return None


def _safetensors(root: str, name: str, size: int) -> str | None:
    """Eight bytes of header length, the header in JSON, then the tensors without a gap up to the end of the file."""
    with open(os.path.join(root, name), "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > min(size - 8, MAX_SAFETENSORS_HEADER):
            return f"has {size} bytes and claims a header of {length}: it is cut off, or no safetensors file"
        data = file.read(length)
    try:
        header = json.loads(data)
        ends = [entry["data_offsets"][1] for key, entry in header.items() if key != "__metadata__"]
        end = 8 + length + max(ends, default=0)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        return "has a header that is not one of a safetensors file"
    return None if end == size else f"has {size} bytes, and its header says {end}"


def _torch_file(root: str, name: str, size: int) -> str | None:
    path = os.path.join(root, name)
    with open(path, "rb") as file:
        start = file.read(_TAR_MAGIC_AT + 5)
        if start.startswith(_ZIP_START):
            return _zip_end(file)
    known = _TORCH_FILE.match(name.rpartition("/")[2]) is not None
    if known and not start.startswith(_PICKLE_START) and start[_TAR_MAGIC_AT:] != b"ustar":
        return "does not start like a file that torch wrote"
    return None


def _zip_end(file) -> str | None:
    try:
        with zipfile.ZipFile(file) as archive:
            offsets = [entry.header_offset for entry in archive.infolist()]
    except (zipfile.BadZipFile, ValueError, NotImplementedError, EOFError):
        return "is cut off: the record at the end of a torch file is missing or damaged"
    # zipfile forgives bytes that are missing or added before the directory, by moving every offset.
    return None if not offsets or min(offsets) == 0 else "is damaged: its records do not start where they should"


def _distcp_file(root: str, name: str, size: int) -> str | None:
    """A sequence of zip archives, one per tensor, where the default format was used."""
    with open(os.path.join(root, name), "rb") as file:
        start = file.read(64)
        if not start.startswith(_ZIP_START):
            return None if any(start) else "starts with zeros"
        file.seek(max(0, size - _ZIP_END_SIZE))
        return None if file.read(4) == _ZIP_END else "is cut off: its last record does not end"


def _json_object(root: str, name: str) -> tuple[dict | None, str | None]:
    with open(os.path.join(root, name), "rb") as file:
        data = file.read()
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        return None, f"is not JSON ({error})"
    if not isinstance(value, dict):
        return None, f"holds a {type(value).__name__}, not an object"
    return value, None


# ---- Several files ----


def _check_links(root: str, files: dict[str, os.stat_result]) -> list[Problem]:
    """Follow the links among `files`, and put what they lead to in their place."""
    problems = []
    for name, info in list(files.items()):
        if stat.S_ISLNK(info.st_mode):
            if leaves(root, name):
                problems.append(Problem(name, REFUSED_LINK))
            else:
                try:
                    files[name] = os.stat(os.path.join(root, name))
                except OSError as error:
                    problems.append(Problem(name, f"is a link that leads nowhere ({error.strerror or error})"))
    return problems


def _check_shards(files: Iterable[str]) -> list[Problem]:
    shards = [match for name in sorted(files) if (match := _SHARD.match(name))]
    if not shards or any(_MODEL_FILE.match(name) for name in files):
        return []
    index = f"{shards[0].group(1)}.{shards[0].group(2)}.index.json"
    return [Problem(index, f"is missing, and {shards[0].string} belongs to one")]


def _check_distcp(root: str, files: dict[str, os.stat_result]) -> list[Problem]:
    problems = []
    for folder in sorted({name.rpartition("/")[0] for name in files if _is_distcp(name)}):
        metadata = f"{folder}/{_DISTCP_METADATA}".lstrip("/")
        if metadata not in files:
            problems.append(Problem(metadata, "is missing"))
            continue
        if not files[metadata].st_size:
            continue  # said already: it is empty
        try:
            with open(os.path.join(root, metadata), "rb") as file:
                data = file.read(MAX_SCANNED_PICKLE)
        except OSError as error:
            problems.append(unreadable(metadata, error))
            continue
        if not data.startswith(_PICKLE_START) or (len(data) < MAX_SCANNED_PICKLE and not data.endswith(b".")):
            problems.append(Problem(metadata, "is cut off or damaged"))
        for shard in sorted(set(_DISTCP.findall(data))):
            name = f"{folder}/{shard.decode('ascii')}".lstrip("/")
            if name not in files:
                problems.append(Problem(name, f"is missing, and {metadata} names it"))
            elif not files[name].st_size:
                problems.append(Problem(name, f"is empty, and {metadata} names it"))
    return problems


def _is_distcp(name: str) -> bool:
    return name.rpartition("/")[2] == _DISTCP_METADATA or name.endswith(".distcp")


def _check_deepspeed(root: str, files: dict[str, os.stat_result]) -> list[Problem]:
    problems = []
    for folder in sorted(_deepspeed_folders(files)):
        bases = {name.removeprefix(f"{folder}/") for name in files if name.startswith(f"{folder}/")}
        if any(base.endswith("_optim_states.pt") for base in bases):
            if not any(base.endswith("_model_states.pt") for base in bases):
                problems.append(Problem(folder, "has files of the optimizer, and none of the model"))
            if _DEEPSPEED_LATEST not in files:
                problems.append(
                    Problem(_DEEPSPEED_LATEST, f"is missing, and {folder} is there: DeepSpeed writes it last")
                )
    return problems + _check_latest(root, files)


def _check_latest(root: str, files: dict[str, os.stat_result]) -> list[Problem]:
    if _DEEPSPEED_LATEST not in files or not files[_DEEPSPEED_LATEST].st_size:
        return []
    try:
        with open(os.path.join(root, _DEEPSPEED_LATEST), "rb") as file:
            folder = file.read(4096).decode("utf-8", "replace").strip()
    except OSError as error:
        return [unreadable(_DEEPSPEED_LATEST, error)]
    if not is_safe_name(folder):
        return [Problem(_DEEPSPEED_LATEST, f"names {folder!r}, which is not a plain path inside the checkpoint")]
    if not any(name.startswith(f"{folder}/") for name in files):
        return [Problem(folder, f"is missing or empty, and {_DEEPSPEED_LATEST} names it")]
    return []


def _deepspeed_folders(names: Iterable[str]) -> set[str]:
    return {folder for name in names if _DEEPSPEED_FOLDER.match(folder := name.partition("/")[0]) and folder != name}


def _ranks(pattern: re.Pattern, names: Iterable[str]) -> set[int]:
    return {int(match.group(1)) for name in names if (match := pattern.match(name))}


def _rank_files(root: str | None, names: set[str], world_size: int) -> set[str]:
    """Every per-rank file that `world_size` ranks leave, of the kinds that are there."""
    wanted = set()
    if world_size > 1 and _ranks(_RNG, names):
        wanted.update(f"rng_state_{rank}.pth" for rank in range(world_size))
    if _ranks(_XLA, names):
        wanted.update(f"rank{rank}-of-{world_size}-optimizer.pt" for rank in range(world_size))
    for folder in _deepspeed_folders(names):
        wanted |= _zero_files(root, folder, names, world_size)
    return wanted


def _zero_files(root: str | None, folder: str, names: set[str], world_size: int) -> set[str]:
    """The ZeRO files that `folder` should hold: each model-parallel rank's, for each rank of its data-parallel group.

    How many that are stands in the optimizer files themselves; where they are not at hand it follows from the number
    of ranks, which is too many for a set-up that shards within a part of the ranks only (MiCS).
    """
    inside = sorted(name for name in names if name.startswith(f"{folder}/"))
    kinds = [
        [match for name in inside if (match := pattern.match(name.rpartition("/")[2]))]
        for pattern in (_ZERO_OPTIMIZER, _ZERO_MODEL)
    ]
    partitions = _partition_count(os.path.join(root, folder, kinds[0][0].string)) if root and kinds[0] else None
    wanted = set()
    for matches in filter(None, kinds):
        model_parallel = {match.group(2) for match in matches}
        count = world_size // len(model_parallel) if partitions is None else partitions
        count = max(count, *(1 + int(match.group(1)) for match in matches))
        some = matches[0]
        before, between, after = (
            some.string[: some.start(1)],
            some.string[some.end(1) : some.start(2)],
            some.string[some.end(2) :],
        )
        wanted.update(
            f"{folder}/{before}{rank}{between}{other}{after}" for rank in range(count) for other in model_parallel
        )
    return wanted


def _partition_count(path: str) -> int | None:
    """Number of ranks that a ZeRO optimizer file says it was divided over, or `None`. The pickle is not executed."""
    try:
        with zipfile.ZipFile(path) as archive:
            name = next(entry for entry in archive.namelist() if entry.endswith("/data.pkl"))
            if archive.getinfo(name).file_size > MAX_SCANNED_PICKLE:
                return None
            data = archive.read(name)
    except (OSError, zipfile.BadZipFile, StopIteration, ValueError, NotImplementedError, EOFError, RuntimeError):
        return None
    counts = (_first_number(data[match.end() : match.end() + 64]) for match in _PARTITION_COUNT.finditer(data))
    return max((count for count in counts if count is not None and 0 < count < 100_000), default=None)


def _first_number(data: bytes) -> int | None:
    """The value that a pickle gives next, if it is a small whole number or a list that starts with one."""
    try:
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name in ("BININT", "BININT1", "BININT2"):
                return argument
            if opcode.name not in ("BINPUT", "LONG_BINPUT", "MEMOIZE", "EMPTY_LIST", "MARK"):
                return None
    except ValueError:
        pass
    return None


def _gaps(files: Iterable[str]) -> set[str]:
    """Per-rank files that are missing between the lowest and the highest rank that is there."""
    missing = set()
    for pattern in (_RNG, _XLA, _ZERO_OPTIMIZER, _ZERO_MODEL):
        kinds: dict[tuple[str, str], set[int]] = {}
        for name in files:
            folder, slash, base = name.rpartition("/")
            if match := pattern.match(base):
                before, after = f"{folder}{slash}{base[: match.start(1)]}", base[match.end(1) :]
                kinds.setdefault((before, after), set()).add(int(match.group(1)))
        for (before, after), ranks in kinds.items():
            missing.update(f"{before}{rank}{after}" for rank in range(min(ranks), max(ranks)) if rank not in ranks)
    return missing


def _names(path: str | os.PathLike | Iterable[str]) -> list[str]:
    if isinstance(path, (str, os.PathLike)):
        return [name for name, _ in disk.walk_files(path)]
    return [name for name in path if name != MANIFEST_NAME and not FILE_LIST_PATTERN.match(name)]
