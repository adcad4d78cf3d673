"""Mutations of real model files: what `mvue.load` makes of them."""

import collections
import copy
import json
import random
import sys
import warnings
from pathlib import Path

import numpy as np

import mvue
from mvue._runtime.threads import worker_count
from mvue._serialise.container import Contents, read, to_bytes


def run(files, *, mutations, seed, folder, watch=False, deep_share=0.15):
    """Load mutations of files; anything but a model or a documented error is raised.

    Returns:
        How many were refused and loaded, how many had a sound checksum, and which audit events
        the interpreter saw that loading should not cause.
    """
    warnings.simplefilter("ignore")
    rng = random.Random(seed)
    path = Path(folder) / "fuzzed.mvue"
    originals = []
    for file in map(Path, files):
        mvue.load(file)  # whatever is imported the first time
        originals.append((file.read_bytes(), read(file)))
    worker_count()  # looks BLAS up, once in a process; sound files need not ask for it
    counts = collections.Counter(mutations=mutations)
    seen = _watch(path) if watch else _Seen()
    errors = collections.Counter()
    for _ in range(mutations):
        data, contents = rng.choice(originals)
        deep = rng.random() < deep_share
        if deep:
            mutated = _deep(rng, contents)
            counts["deep"] += 1
        else:
            mutated = _shallow(rng, data, [other for other, _ in originals])
        path.write_bytes(mutated)
        seen.active = True
        try:
            mvue.load(path)
        except (mvue.exceptions.ModelFileError, OSError) as error:
            seen.active = False
            counts["refused"] += 1
            errors[str(error).partition(": ")[2][:40]] += 1
        else:
            seen.active = False
            counts["loaded"] += 1
    return json.dumps({**counts, "watched": sorted(set(seen)), "errors": errors.most_common(40)})


class _Seen(list):
    active = False


def _watch(path):
    """Note what the interpreter does while a file is loaded."""
    seen = _Seen()
    watched = ("exec", "compile", "import", "open", "os.", "subprocess.", "socket.", "ctypes.")

    def hook(event, args):
        if not seen.active or not event.startswith(watched):
            return
        if event == "open" and Path(str(args[0])) == path:
            return
        caller = sys._getframe(1).f_globals.get("__name__", "")
        # A traceback shows lines of source: those of the library, never of the file.
        if not (event == "open" and caller == "tokenize"):
            seen.append(f"{event} {str(args[0])[:80]} by {caller}")

    sys.addaudithook(hook)
    return seen


def _shallow(rng, data, others):
    """Flips, cuts, insertions and splices of bytes."""
    data = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 5, 20))):
        if len(data) < 8:
            break
        kind = rng.randrange(6)
        # Half of the changes in the header, however large the tensors are.
        end = len(data) if rng.random() < 0.5 else min(len(data), 8 + data[0] + 256 * data[1])
        place = rng.randrange(max(end, 1))
        if kind == 0:
            data[place] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[place] = rng.choice((0, 255, 34, 44, 91, 123, 125, rng.randrange(256)))
        elif kind == 2:
            del data[place : place + rng.choice((1, 2, 8, len(data)))]
        elif kind == 3:
            data[place:place] = rng.randbytes(rng.choice((1, 4, 64)))
        elif kind == 4:
            other = rng.choice(others)
            start = rng.randrange(len(other))
            size = rng.choice((8, 100, 5000))
            data[place : place + size] = other[start : start + size]
        else:
            data[:8] = rng.choice((0, 2**16, 2**31, 2**63, 2**64 - 1)).to_bytes(8, "little")
    return bytes(data)


def _deep(rng, contents):
    """A change of the description or of the tensors, with a sound checksum."""
    header, tensors = copy.deepcopy(contents.header), dict(contents.tensors)
    header.pop("format")
    for _ in range(rng.choice((1, 1, 2, 4))):
        if rng.random() < 0.7:
            _change_node(rng, header)
        elif tensors:
            _change_tensor(rng, tensors)
    try:
        return to_bytes(Contents(header, tensors))
    except (TypeError, ValueError):
        return b""


def _change_node(rng, node):
    """Descend at random and change what is there."""
    while True:
        keys = list(node) if isinstance(node, dict) else range(len(node))
        if not keys:
            return
        key = rng.choice(list(keys))
        child = node[key]
        if isinstance(child, (dict, list)) and child and rng.random() < 0.85:
            node = child
            continue
        kind = rng.randrange(5)
        if kind == 0:
            node[key] = rng.choice(
                (None, True, 0, -1, 2**62, 2**63, 10**9, 1e308, 0.5, "", "x", [], {}, [[]], "inf")
            )
        elif kind == 1:
            node[key] = {
                rng.choice(("type", "function", "class", "array", "tuple", "float", "dict")): child,
                "fields": {},
            }
        elif kind == 2:
            node[key] = rng.choice(
                (
                    *({"function": "os.system"}, {"type": "mvue.Model", "fields": {}}),
                    *(
                        {"function": "jax.nn.relu"},
                        {"type": "equinox.nn.Lambda", "fields": {"fn": 1}},
                    ),
                    *({"tuple": [1, 2]}, {"method": "__init__", "of": child}, {"float": "nan"}),
                    {"shape": [2**40, 3], "dtype": "float32"},
                    {"strings": ["a"] * 3, "shape": [3], "object": False},
                    {"partial": {"function": "jax.numpy.sum"}, "args": [], "keywords": {}},
                )
            )
        elif kind == 3 and isinstance(node, dict):
            node[rng.choice(("x", "type", "__class__", "__dict__", "fields"))] = node.pop(key)
        elif isinstance(child, (int, float)) and not isinstance(child, bool):
            node[key] = type(child)(child * rng.choice((-1, 2, 10**6)) + rng.choice((0, 1)))
        elif isinstance(child, str):
            place = rng.randrange(len(child) + 1)
            node[key] = child[:place] + rng.choice("x._/0") + child[place + 1 :]
        else:
            node[key] = copy.deepcopy(child)
        return


def _change_tensor(rng, tensors):
    name = rng.choice(list(tensors))
    array = tensors[name]
    kind = rng.randrange(6)
    if kind == 0:
        array = array.reshape(-1)
    elif kind == 1:
        array = array[None]
    elif kind == 2:
        array = array.astype(rng.choice((np.float64, np.float16, np.int8, bool)))
    elif kind == 3:
        array = np.full_like(array, rng.choice((0, 1))) if array.size else array
    elif kind == 4:
        array = np.zeros(rng.choice(((0,), (1,), (3, 3), (7,), (1, 5000), (5000, 1), (200, 200))))
    else:
        tensors[rng.choice(list(tensors))] = array
    tensors[name] = array
