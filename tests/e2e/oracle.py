"""The reference for right answers: one libllama context, driven through llama_cpp's ctypes
bindings.

It shares no code with Tandem: same library, same model file, same chunk grid
(docs/architecture.md), one sequence in one context, greedy. Answers are kept on disk by (model,
grid, prompt), because the same prompts are asked over several transports. `python oracle.py` checks
the oracle itself and prints which batch sizes give bit-equal logits.
"""

import ctypes
import hashlib
import json
import os
import pathlib
import re
import sys
import tempfile

import numpy
import llama_cpp

import gguf

CHUNK_TOKENS_MIN = 64  # A shorter remainder joins the chunk before it.


def chunk_grid(prompt, chunk_tokens):
    """Borders of the chunks on which a prompt of `prompt` tokens runs, as (first, count)."""
    chunks = [
        (first, min(chunk_tokens, prompt - first)) for first in range(0, prompt, chunk_tokens)
    ]
    if len(chunks) > 1 and chunks[-1][1] < CHUNK_TOKENS_MIN:
        first, count = chunks[-2]
        chunks[-2:] = [(first, count + chunks[-1][1])]
    return chunks


_quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)


class _Override(ctypes.Structure):
    _fields_ = [("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p)]


def _buffer_types():
    """The CPU's special layouts for weights, by name; llama_cpp has no bindings for this."""
    folder = pathlib.Path(llama_cpp.__file__).parent / "lib"
    ggml, base = ctypes.CDLL(folder / "libggml.so"), ctypes.CDLL(folder / "libggml-base.so")
    ggml.ggml_backend_dev_by_type.restype = ctypes.c_void_p
    base.ggml_backend_dev_backend_reg.restype = ctypes.c_void_p
    base.ggml_backend_reg_get_proc_address.restype = ctypes.c_void_p
    base.ggml_backend_buft_name.restype = ctypes.c_char_p
    cpu = ctypes.c_void_p(ggml.ggml_backend_dev_by_type(0))
    registry = ctypes.c_void_p(base.ggml_backend_dev_backend_reg(cpu))
    address = base.ggml_backend_reg_get_proc_address(registry, b"ggml_backend_dev_get_extra_bufts")
    listing = ctypes.CFUNCTYPE(ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p)(address)(cpu)
    found, index = {}, 0
    while listing[index]:
        name = base.ggml_backend_buft_name(ctypes.c_void_p(listing[index])).decode()
        found[name] = listing[index]
        index += 1
    return found


class Oracle:
    def __init__(self, model_path, context=4096, chunk_tokens=256):
        self.path = pathlib.Path(model_path)
        self.context_tokens = context
        self.chunk_tokens = chunk_tokens
        stat = self.path.stat()
        self.identity = f"{self.path.name} {stat.st_size} {stat.st_mtime_ns} {chunk_tokens} placed"
        self.cache = pathlib.Path(tempfile.gettempdir()) / "tandem-oracle"
        self.cache.mkdir(exist_ok=True)
        self._model = None
        self._vocab_model = None
        self._context = None

    def greedy(self, tokens, max_tokens):
        """The tokens that follow `tokens`, the end token included where one is drawn."""
        key = hashlib.sha256(
            json.dumps([self.identity, list(tokens), max_tokens]).encode()
        ).hexdigest()
        entry = self.cache / f"{key[:32]}.json"
        if entry.exists():
            return json.loads(entry.read_text())
        answer = self._generate(tokens, max_tokens)
        scratch = entry.with_suffix(f".{os.getpid()}")
        scratch.write_text(json.dumps(answer))
        scratch.replace(entry)
        return answer

    def tokenize(self, text, add_special=True):
        vocab = self._vocab()
        data = text.encode()
        buffer = (llama_cpp.llama_token * (len(data) + 8))()
        count = llama_cpp.llama_tokenize(
            vocab, data, len(data), buffer, len(buffer), add_special, False
        )
        if count < 0:
            raise ValueError("text does not tokenise")
        return list(buffer[:count])

    def logits(self, tokens, batches):
        """Logits after `tokens`, run as batches of the given sizes; for the self-check."""
        self._clear()
        first = 0
        for count in batches:
            self._run(tokens[first : first + count], first)
            first += count
        assert first == len(tokens)
        return self._last_logits().copy()

    def close(self):
        for handle, free in (
            (self._context, llama_cpp.llama_free),
            (self._model, llama_cpp.llama_model_free),
            (self._vocab_model, llama_cpp.llama_model_free),
        ):
            if handle:
                free(handle)
        self._model = self._vocab_model = self._context = None

    def _generate(self, tokens, max_tokens):
        self._clear()
        vocab = llama_cpp.llama_model_get_vocab(self._model)
        for first, count in chunk_grid(len(tokens), self.chunk_tokens):
            self._run(tokens[first : first + count], first)
        answer = []
        while True:
            answer.append(int(numpy.argmax(self._last_logits())))
            if len(answer) == max_tokens or llama_cpp.llama_vocab_is_eog(vocab, answer[-1]):
                return answer
            self._run(answer[-1:], len(tokens) + len(answer) - 1)

    def _vocab(self):
        if self._model is None and self._vocab_model is None:
            self._vocab_model = self._load(vocab_only=True)
        return llama_cpp.llama_model_get_vocab(self._model or self._vocab_model)

    def _load(self, vocab_only):
        llama_cpp.llama_log_set(_quiet, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        params.vocab_only = vocab_only
        params.n_gpu_layers = 0
        params.use_extra_bufts = False
        if not vocab_only:
            params.tensor_buft_overrides = ctypes.cast(self._placement(), ctypes.c_void_p)
        model = llama_cpp.llama_model_load_from_file(str(self.path).encode(), params)
        if not model:
            raise RuntimeError(f"cannot load {self.path}")
        return model

    def _placement(self):
        """Q4_0 matrices of the blocks lie in libggml's repacked layout, as the engine has them (it
        says why); all else as in the file. The list must live as long as the loading."""
        groups = {
            "^" + re.sub(r"[0-9]+", "[0-9]+", name.replace(".", r"\.")) + "$"
            for name, (dimensions, kind) in gguf.tensors(self.path).items()
            if kind == llama_cpp.GGML_TYPE_Q4_0 and dimensions == 2 and name.startswith("blk.")
        }
        repacked = _buffer_types()["CPU_REPACK"] if groups else None
        self._overrides = (_Override * (len(groups) + 1))()
        for entry, pattern in zip(self._overrides, sorted(groups)):
            entry.pattern, entry.buffer_type = pattern.encode(), repacked
        return self._overrides

    def _clear(self):
        if self._context is None:
            self._model = self._load(vocab_only=False)
            params = llama_cpp.llama_context_default_params()
            params.n_ctx = self.context_tokens
            params.n_batch = params.n_ubatch = max(512, self.chunk_tokens + CHUNK_TOKENS_MIN)
            params.n_seq_max = 1
            params.n_threads = params.n_threads_batch = 1
            params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED
            params.type_k = params.type_v = llama_cpp.GGML_TYPE_F16
            params.swa_full = True
            params.kv_unified = False
            self._context = llama_cpp.llama_init_from_model(self._model, params)
            if not self._context:
                raise RuntimeError("cannot make a context")
            self._vocab_size = llama_cpp.llama_vocab_n_tokens(
                llama_cpp.llama_model_get_vocab(self._model)
            )
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)

    def _run(self, tokens, first):
        batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
        try:
            batch.n_tokens = len(tokens)
            for i, token in enumerate(tokens):
                batch.token[i] = token
                batch.pos[i] = first + i
                batch.n_seq_id[i] = 1
                batch.seq_id[i][0] = 0
                batch.logits[i] = i + 1 == len(tokens)
            status = llama_cpp.llama_decode(self._context, batch)
            if status != 0:
                raise RuntimeError(f"llama_decode returned {status}")
        finally:
            llama_cpp.llama_batch_free(batch)

    def _last_logits(self):
        pointer = llama_cpp.llama_get_logits_ith(self._context, -1)
        return numpy.ctypeslib.as_array(pointer, shape=(self._vocab_size,))


def sample_text(tokens_wanted, seed):
    """Plain English words, more than enough for `tokens_wanted` tokens; the same for a seed."""
    import random

    source = random.Random(seed)
    words = (
        "the river town old winter market people story light night small garden window letter road "
        "mountain answer question music silver bread water morning train paper house friend island "
        "because while under after before slowly often never always again"
    ).split()
    out = []
    for index in range(tokens_wanted + 16):
        out.append(source.choice(words) + ("." if index % 11 == 10 else ""))
    return "Once upon a time " + " ".join(out)


def prompt_of(oracle, tokens_wanted, seed):
    """A prompt of exactly `tokens_wanted` tokens."""
    return oracle.tokenize(sample_text(tokens_wanted, seed))[:tokens_wanted]


def main():
    failed = 0
    for path in sys.argv[1:] or [
        "models/smollm2-135m-instruct-q4_0.gguf",
        "models/gemma-3-270m-q4_k_m.gguf",
    ]:
        oracle = Oracle(path, context=2048)
        prompt = prompt_of(oracle, 200, 1)
        print(f"{path}: prompt of {len(prompt)} tokens, greedy {oracle.greedy(prompt, 12)}")
        again = oracle._generate(prompt, 12)
        failed += again != oracle.greedy(prompt, 12)
        reference = {
            "small": oracle.logits(prompt, [1] * 200),
            "large": oracle.logits(prompt, [200]),
        }
        for size in (1, 2, 4, 8, 16, 24, 31, 32, 33, 40, 47, 48, 63, 64, 65, 100, 128, 199):
            batches = [size] * (200 // size) + ([200 % size] if 200 % size else [])
            # The last batch decides the regime of the logits, the others that of the rows.
            logits = oracle.logits(prompt, batches)
            small = float(numpy.abs(logits - reference["small"]).max())
            large = float(numpy.abs(logits - reference["large"]).max())
            print(
                f"  batches of {size:3d}: differ from one-by-one by {small:.4f}, "
                f"from one batch by {large:.4f}"
            )
        oracle.close()
    print(f"{2 - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
