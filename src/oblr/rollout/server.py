"""vLLM in a server of its own: started by the user, by a job script, or by this run on its own machine."""

import json
import os
import secrets
import shlex
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Literal, cast

import torch
from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from torch import Tensor

from oblr.batch.types import Sampling
from oblr.errors import EngineDiedError, GarbledError, SettingError, StaleEngineError, why
from oblr.kinds import Count, Few, Natural, Positive, PositiveShare, Precision, checked
from oblr.problem import Completion
from oblr.rollout.client import LARGEST, Client, Limits, Refused
from oblr.rollout.engine import Done, check_fresh, check_limits, precise, whole_prompts
from oblr.rollout.process import ServerProcess
from oblr.rollout.proof import SETTING, VARIABLE, read_secret, secret_of
from oblr.rollout.readback import Block, Part, from_text, to_text
from oblr.rollout.replies import in_order
from oblr.rollout.senders import HTTPSender, Sender
from oblr.rollout.versions import spans
from oblr.run.host import CXX, lacking
from oblr.run.meeting import LOOPBACK
from oblr.run.private import kept_caches
from oblr.run.ranks import of_run

GENERATE = "/inference/v1/generate"
#: Lines of ``/metrics`` that change when a token has been read or sampled.
COUNTED = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")
#: Seconds between looks at these; and those in which a server notices that the run before has ended.
PULSE, SETTLE = 10.0, 3.0
#: The status of an order that another run's claim stands against.
TAKEN = 409
#: Bytes that a reply may have: of its own, for each token, and for each byte of a question after weights.
MESSAGE, TOKEN, READ = 2**20, 1024, 64
#: vLLM queues what does not fit into a batch; more connections than this would only wait there.
CONNECTIONS = 256
#: Share of a GPU that the run's own server takes: of the trainer's, as much as an engine in its process; of its own.
SHARED = 0.4
OWN = 0.9


def stored(model: str) -> str:
    """What tells a model apart however it is named: its folder, or its commit in the hub's cache, wherever that lies.

    Where the hub is not to be asked (``HF_HUB_OFFLINE``) vLLM calls a model of the hub by its folder in the cache.
    """
    cached = None
    with suppress(HFValidationError):  # a folder of another machine
        cached = None if Path(model).exists() else try_to_load_from_cache(model, "config.json")
    folder = Path(cached).parent if isinstance(cached, str) else Path(model).resolve()
    return "/".join(folder.parts[-3:]) if folder.parent.name == "snapshots" else str(folder)


@checked("rollout.engines.server")
class ServerEngine:
    """Samples from a vLLM server, which all ranks share; rank 0 starts it and sends it the weights.

    A request has a seed of its own, so that neither order nor company of the requests matters.

    Args:
        model, dtype, max_model_len: as for :class:`~oblr.rollout.vllm.VLLMEngine`.
        log: file for the output of the run's own server.
        url: of a server that runs already, http://host:port; None: the run starts its own on this machine.
        token_file: file with what the server at ``url`` and its run know and nobody else; it is made where it is not
            there.
        transfer: how weights travel: ``http``, or ``nccl`` between GPUs that trainer and server do not share; ``auto``:
            the way of the server at ``url``, or nccl where ``gpus`` are given.
        piece_mib: largest part of the weights in one HTTP request, MiB.
        start_timeout: how long a server may take to start, or to come back after it has died, seconds.
        silence_timeout: how long it may sample nothing while it is asked to, or not answer anything else, seconds.
        gpus: GPUs of the run's own server, as in CUDA_VISIBLE_DEVICES, such as 6,7; None: the trainer's.
        tensor_parallel_size: how many of them share a copy of the model; there are as many copies as fit.
        gpu_memory_utilization: share of each GPU for weights and KV cache; None: :data:`OWN` of ``gpus``,
            :data:`SHARED` of the trainer's.
        cpu_kv_cache_gib, enforce_eager: as for :class:`~oblr.rollout.vllm.VLLMEngine`.
        max_num_batched_tokens, max_num_seqs: as for :class:`~oblr.rollout.vllm.VLLMEngine`.

    Raises:
        SettingError: there is no server at ``url``, or one that this run cannot use.
    """

    apart, in_flight = True, False

    def __init__(
        self,
        model: str | None,
        dtype: Precision,
        max_model_len: Count | None,
        log: str,
        url: str | None = None,
        token_file: str | None = None,
        transfer: Literal["auto", "http", "nccl"] = "auto",
        piece_mib: Positive = 64,
        start_timeout: Positive = 600,
        silence_timeout: Positive = 300,
        gpus: Natural | str | None = None,
        tensor_parallel_size: Few = 1,
        gpu_memory_utilization: PositiveShare | None = None,
        cpu_kv_cache_gib: Few = 1,
        enforce_eager: bool = False,
        max_num_batched_tokens: Count | None = None,
        max_num_seqs: Count | None = None,
    ):
        check_limits("server", max_num_batched_tokens, max_num_seqs)
        model, max_model_len = cast(str, model), cast(int, max_model_len)  # an evaluation knows both in time
        gpus = None if gpus is None else str(gpus)
        gpu, devices = torch.cuda.is_available(), (gpus or "0").count(",") + 1
        if devices % tensor_parallel_size:
            raise SettingError(
                "rollout.engines.server.tensor_parallel_size",
                f"{devices} GPUs do not make groups of {tensor_parallel_size}",
                "use a divisor of the number of rollout.engines.server.gpus",
            )
        self.copies = devices // tensor_parallel_size
        if transfer == "nccl" and not gpu:
            raise SettingError("rollout.engines.server.transfer", "there is no GPU here for nccl", "use http")
        automatic, way = transfer == "auto", "nccl" if gpus and gpu else "http"
        self.model, self.dtype, self.log, self.transfer = model, dtype, Path(log), way if automatic else transfer
        self.own, self.shares_gpu = url is None, url is None and gpus is None
        self.gpu_memory_utilization = gpu_memory_utilization or (OWN if gpus else SHARED)
        self.piece, self.start_timeout, self.silence_timeout = int(piece_mib * 2**20), start_timeout, silence_timeout
        tokens = whole_prompts(max_num_batched_tokens, max_model_len, gpu)
        self.arguments = [
            *("vllm.entrypoints.openai.api_server", "--model", model, "--dtype", dtype),
            *("--max-model-len", str(max_model_len), "--logprobs-mode", "processed_logprobs"),
            *("--generation-config", "vllm", "--skip-tokenizer-init", "--enable-scale-out"),
            *("--weight-transfer-config", json.dumps({"backend": self.transfer})),
            *("--worker-extension-cls", "oblr.rollout.transfer.HTTPTransfer"),
            *("--middleware", "oblr.rollout.guard.Guard"),
            *(["--enforce-eager"] if enforce_eager or not gpu else []),
            *([] if gpu else ["--no-enable-chunked-prefill"]),
            *(["--max-num-batched-tokens", str(tokens)] if tokens else []),
            *(["--max-num-seqs", str(max_num_seqs)] if max_num_seqs else []),
            *(["--gpu-memory-utilization", str(self.gpu_memory_utilization)] if gpu else []),
            *(["--tensor-parallel-size", str(tensor_parallel_size)] if tensor_parallel_size > 1 else []),
            *(["--data-parallel-size", str(self.copies)] if self.copies > 1 else []),
        ]
        self.environment = {
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "1",  # whatever an engine in this process has been told
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_USE_FLASHINFER_SAMPLER": "0",  # as in an engine of this process
            **kept_caches(),
            "VLLM_CPU_KVCACHE_SPACE": str(cpu_kv_cache_gib),
            "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", LOOPBACK),  # its processes are on one machine
            "GOMP_SPINCOUNT": os.environ.get("GOMP_SPINCOUNT", "1000"),  # idle threads leave the cores to the trainer
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]),
            **({"CUDA_VISIBLE_DEVICES": gpus} if gpus else {}),
            **({} if gpu or lacking(*CXX) is None else {"TORCHDYNAMO_DISABLE": "1"}),  # it would compile one function
            **precise(dtype),
        }
        self.weight_version: int | None = None
        self.process: ServerProcess | None = None
        self.client: Client | None = None
        if url is not None:
            if token_file is None:
                raise SettingError(SETTING, f"nothing is known that the server at {url} knows", "name a file for it")
            self.client = Client(url, secret_of(Path(token_file)), timeout=silence_timeout)
            self._check(dtype, max_model_len, automatic, Path(token_file))

    def _check(self, dtype: str, max_model_len: int, automatic: bool, token_file: Path) -> None:
        """Whether the running server is what this run would have started, and free."""
        setting = "rollout.engines.server.url"
        variables = {VARIABLE: str(token_file.resolve()), "VLLM_SERVER_DEV_MODE": "1"} | precise(dtype)
        environment = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
        start = f"start it with {environment} python -m {shlex.join(self.arguments)} --port {self.server.port}"
        try:
            paths = self.server.get("/openapi.json")["paths"]
        except GarbledError as error:
            raise SettingError(SETTING, f"{error}; {token_file} has that", start) from error
        except EngineDiedError as error:
            raise SettingError(setting, f"no vLLM server answers: {error}", start) from error
        needed = {
            "/start_weight_update": "VLLM_SERVER_DEV_MODE=1",
            "/pause": "VLLM_SERVER_DEV_MODE=1",
            "/collective_rpc": "VLLM_SERVER_DEV_MODE=1",
            GENERATE: "--enable-scale-out",
        }
        for path, flag in needed.items():
            if path not in paths:
                raise SettingError(setting, f"{self.server.url} has no {path} without {flag}", start)
        config = self.server.get("/server_info?config_format=json")["vllm_config"]
        has = config["model_config"] | {"transfer": (config["weight_transfer_config"] or {}).get("backend")}
        self.copies = config["parallel_config"]["data_parallel_size"]
        if automatic and has["transfer"] == "nccl" and torch.cuda.is_available():
            self.transfer = "nccl"
        wanted = {
            "model": ("policy.path", stored(self.model)),
            "dtype": ("policy.dtype", f"torch.{dtype}"),
            "max_model_len": ("rollout.max_model_len", max_model_len),
            "logprobs_mode": (setting, "processed_logprobs"),
            "generation_config": (setting, "vllm"),
            "transfer": ("rollout.engines.server.transfer", self.transfer),
        }
        has["model"] = stored(has["model"])
        for name, (own_setting, value) in wanted.items():
            if has[name] != value:
                raise SettingError(own_setting, f"{self.server.url} has {name} {has[name]}, not {value}", start)
        end = time.monotonic() + SETTLE
        while self.server.taken:
            if time.monotonic() > end:
                raise self._taken()
            time.sleep(0.2)

    def _taken(self) -> SettingError:
        return SettingError(
            "rollout.engines.server.url",
            f"{self.server.url} serves another run",
            "wait for its end, or start another server",
        )

    @property
    def server(self) -> Client:
        if self.client is None:
            raise RuntimeError("the server has not been started")
        return self.client

    def start(self) -> None:
        self.weight_version = None
        self.close()
        ranks = of_run()
        told: Any = None
        if ranks.rank == 0:
            try:
                told = self._begin()
            except SettingError as error:
                told = (error.setting, error.problem, error.fix)
            except EngineDiedError as error:
                told = GarbledError(str(error)) if isinstance(error, GarbledError) else EngineDiedError(str(error))
        first = ranks.objects(told)[0]
        if isinstance(first, EngineDiedError):
            raise first
        if isinstance(first, tuple):
            raise SettingError(*first)
        if ranks.rank > 0:
            self._join(first)

    def _begin(self) -> dict[str, str]:
        """Rank 0 finds the server, or starts it, and claims it; what the others must know."""
        told = {"run": secrets.token_hex(16), "host": socket.gethostname()}
        if self.own:
            self.process = ServerProcess(self.arguments, self.environment, self.log)
            self.process.wait(self.start_timeout)
            told |= {"url": self.process.url, "token": str(self.process.token)}
            self.client = Client(told["url"], read_secret(self.process.token), self.log, self.silence_timeout)
        else:
            self._await_return()
        self._claim(told["run"])
        if not self.own:
            self.server.post("/resume")  # the run before may have ended while it was paused
        self.sender = self._sender()
        return told

    def answers(self) -> bool:
        """Whether there is a server, and it is well."""
        try:
            self.server.get("/health", timeout=1)
            return True
        except EngineDiedError:
            return False

    def _claim(self, run: str) -> None:
        """Another run may have just ended, and the server not yet have noticed."""
        end = time.monotonic() + SETTLE
        while True:
            try:
                return self.server.claim(run)
            except Refused as error:
                if error.status != TAKEN:
                    raise
                if time.monotonic() > end:
                    raise self._taken() from error
                time.sleep(0.2)

    def _join(self, told: dict[str, str]) -> None:
        """Another rank asks what rank 0 has claimed."""
        if self.own:
            if told["host"] != socket.gethostname():
                raise SettingError(
                    "rollout.engines.server.url",
                    f"this rank is not on {told['host']}, where the run's own server is",
                    "start a server that all machines reach, and give its url",
                )
            self.client = Client(told["url"], read_secret(Path(told["token"])), self.log, self.silence_timeout)
        self.server.run = told["run"]

    def _sender(self) -> Sender:
        if self.transfer == "http":
            return HTTPSender(self.server, self.piece)
        from oblr.rollout.nccl import NCCLSender

        return NCCLSender(self.server)

    def _await_return(self) -> None:
        """A server that somebody else looks after."""
        end = time.monotonic() + self.start_timeout
        while True:
            try:
                return self.server.get("/health", timeout=5)
            except GarbledError:
                raise
            except EngineDiedError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.5)

    def sync(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        if not self.in_flight:  # where it is, what is asked meanwhile waits for the new ones
            self.weight_version = None
        if of_run().rank == 0:
            with self._paused() if self.in_flight else nullcontext():
                self._send(weights, str(version))
        self.weight_version = version

    @contextmanager
    def _paused(self) -> Iterator[None]:
        """Nothing is sampled meanwhile, and all goes on then. Where that fails, what is asked is given up."""
        try:
            self.server.post("/pause?mode=keep&clear_cache=false")
            yield
            self.server.post("/resume")
        except EngineDiedError as death:
            self.server.give_up(str(death))
            raise

    def _send(self, weights: Iterable[tuple[str, Tensor]], version: str) -> None:
        try:
            self.server.post("/start_weight_update")
        except Refused:  # a trainer died within an update: what is no update ends it
            with suppress(Refused):
                self.server.post("/update_weights", update_info={})
            self.server.post("/start_weight_update")
        self.sender.send(weights)
        self.server.post("/finish_weight_update", weight_version=version)
        running = "?reset_running_requests=true" if self.in_flight else ""  # responses are read anew, as prompts are
        with self._understood("/reset_prefix_cache"):
            dropped = self.server.post(f"/reset_prefix_cache{running}")["success"]
        if dropped is not True:
            raise EngineDiedError(f"{self.server.url} keeps a cache of its old weights: it is serving somebody else")
        with self._understood("/weight_info"):
            self._check_version(self.server.get("/weight_info")["weight_version"], version)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        seeds: Sequence[int],
        done: Done | None = None,
    ) -> list[list[Completion]]:
        check_fresh(self)

        def complete(query: int, prompt: list[int], seed: int) -> list[Completion]:
            group = self._complete(prompt, sampling, seed)
            if done is not None:
                for j, completion in enumerate(group):
                    done(query, j, completion)
            return group

        with ThreadPoolExecutor(CONNECTIONS) as connections:
            replies = [
                connections.submit(complete, query, list(prompt), seed)
                for query, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True))
            ]
            try:
                self._await(replies)
            except BaseException as error:
                while not all(reply.cancel() or reply.done() for reply in replies):
                    self.server.give_up(str(error))  # also of what is only now asked
                    time.sleep(0.05)
                raise
            return [reply.result() for reply in replies]

    def _await(self, replies: Sequence[Future[list[Completion]]]) -> None:
        """All of them, for as long as the server gets on with them.

        Raises:
            EngineDiedError: what the first to fail has failed of; or nothing has been sampled for ``silence_timeout``.
        """
        open_ones, tokens, since = set(replies), "", time.monotonic()
        while open_ones:
            through, open_ones = wait(open_ones, min(PULSE, self.silence_timeout / 4), FIRST_EXCEPTION)
            for reply in through:
                reply.result()
            sampled = tokens if through else self._sampled() or tokens
            if through or sampled != tokens or self._is_paused():
                tokens, since = sampled, time.monotonic()
            elif time.monotonic() - since > self.silence_timeout:
                raise EngineDiedError(f"{self.server.url} has sampled nothing for {self.silence_timeout:g} s")

    def _sampled(self) -> str:
        """How many tokens the server has read and sampled, in its own words; nothing where it does not say."""
        try:
            lines = self.server.text("/metrics", timeout=self.silence_timeout / 4).splitlines()
        except EngineDiedError:
            return ""
        return "".join(line for line in lines if line.startswith(COUNTED))

    def _is_paused(self) -> bool:
        """Whether the server is paused, as it is while it gets new weights; False where it gives no answer."""
        with suppress(EngineDiedError, LookupError, TypeError):
            return self.in_flight and self.server.get("/is_paused")["is_paused"] is True
        return False

    def _complete(self, prompt: list[int], sampling: Sampling, seed: int) -> list[Completion]:
        """The completions of one prompt; the n-th of them has the seed ``seed + n``."""
        reply = self.server.post(
            GENERATE,
            Limits(None, MESSAGE + sampling.n * sampling.max_new_tokens * TOKEN),
            token_ids=prompt,
            sampling_params={
                "n": sampling.n,
                "temperature": sampling.temperature,
                "max_tokens": sampling.max_new_tokens,
                "top_p": sampling.top_p,
                "top_k": sampling.top_k,
                "min_p": sampling.min_p,
                "stop_token_ids": sampling.end_ids,
                "ignore_eos": True,  # they are among the former
                "logprobs": 0,
                "detokenize": False,
                "seed": seed,
            },
        )
        with self._understood(GENERATE):
            return in_order(((choice["index"], self._completion(choice)) for choice in reply["choices"]), sampling.n)

    def _completion(self, choice: dict[str, Any]) -> Completion:
        of_tokens = choice["weight_versions"]
        for span in [] if self.in_flight else of_tokens:
            self._check_version(span["version"], str(self.weight_version))
        if choice["finish_reason"] not in ("stop", "length"):
            raise EngineDiedError(f"{self.server.url} gave up a request: {choice['finish_reason']}")
        content = choice["logprobs"]["content"]
        if [token["token_id"] for token in content] != choice["token_ids"]:
            raise ValueError("log-probabilities of other tokens")
        logprobs = [float(token["logprob"]) for token in content]
        versions = spans(of_tokens, len(content)) if self.in_flight else ()
        return Completion(choice["token_ids"], logprobs, choice["finish_reason"] == "stop", versions)

    @contextmanager
    def _understood(self, path: str) -> Iterator[None]:
        """Raises GarbledError where what came has not the parts that such an answer has."""
        try:
            yield
        except (LookupError, TypeError, ValueError, AttributeError, EOFError, UnpicklingError) as error:
            raise GarbledError(f"{self.server.url}{path}: an answer that makes no sense: {why(error)}") from error

    def _check_version(self, found: str, expected: str) -> None:
        if found != expected:
            raise EngineDiedError(f"{self.server.url} has the weights of version {found}, not {expected}")

    def read(self, blocks: Sequence[Block]) -> list[list[Part]]:
        text = to_text(blocks)
        limits = Limits(self.silence_timeout, LARGEST + READ * len(text))
        answer = self.server.post("/collective_rpc", limits, method="read_back", args=[text])
        if self.copies > 1:  # vLLM returns what the first of them says
            try:
                self.server.post("/collective_rpc", method="compare_copy", args=[text, answer["results"]])
            except Refused as error:
                raise StaleEngineError(f"the rollout engine's {self.copies} copies differ: {error}") from error
        with self._understood("/collective_rpc"):
            return [[Part(*part) for part in from_text(worker)] for worker in answer["results"]]

    def sleep(self) -> None:
        """The server's memory is not the trainer's."""

    def close(self) -> None:
        if self.client is not None:
            self.client.give_up("it is closed")
            self.client.release()
        if self.process is not None:
            self.process.stop()
            self.process = None
