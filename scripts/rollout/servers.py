"""The inference servers that scripts/rollout_http.py knows: which of their addresses does what."""

import http.client
import json
import time
import urllib.parse


class ServerError(Exception):
    """What the server did, and what to do about it."""


class Connection:
    """One connection to a server, for one thread. `timeout`: seconds in which an answer must be complete, so that a
    server that drips bytes is noticed."""

    def __init__(self, url, timeout):
        parts = urllib.parse.urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ServerError(f"expected an address such as http://127.0.0.1:8000, found {url}")
        self.host, self.port, self.timeout = parts.hostname, parts.port or 80, timeout
        self.prefix = parts.path.rstrip("/")

    def call(self, method, path, body=None):
        """(status, text) of an answer. ServerError: there is none."""
        deadline = time.monotonic() + self.timeout
        connection = http.client.HTTPConnection(self.host, self.port, timeout=self.timeout)
        where = f"{method} http://{self.host}:{self.port}{self.prefix}{path}"
        try:
            data = None if body is None else json.dumps(body).encode()
            connection.request(method, self.prefix + path, data, {"Content-Type": "application/json"} if data else {})
            answer = connection.getresponse()
            parts = []
            while part := answer.read1(1 << 16):
                parts.append(part)
                if time.monotonic() > deadline:
                    raise TimeoutError
            return answer.status, b"".join(parts).decode(errors="replace")
        except TimeoutError:
            raise ServerError(f"{where}: no whole answer within {self.timeout:g} s") from None
        except (OSError, http.client.HTTPException) as error:
            raise ServerError(f"{where}: {error or type(error).__name__}") from None
        finally:
            connection.close()

    def json(self, method, path, body=None, remedy=""):
        """The JSON of an answer with status 200, None where it is empty. ServerError: any other answer."""
        status, text = self.call(method, path, body)
        where = f"{method} {self.prefix}{path}"
        if status != 200:
            hint = f"; {remedy}" if remedy and status in (403, 404, 405) else ""
            raise ServerError(f"{where}: expected status 200, found {status}: {text[:300]!r}{hint}")
        try:
            return json.loads(text) if text.strip() else None
        except ValueError:
            raise ServerError(f"{where}: expected JSON, found {text[:300]!r}") from None


def member(answer, *path):
    """answer[path[0]][path[1]]..., or None."""
    for key in path:
        try:
            answer = answer[key]
        except (KeyError, IndexError, TypeError):
            return None
    return answer


class Vllm:
    """vLLM's OpenAI server, with VLLM_SERVER_DEV_MODE=1."""

    name = "vllm"
    remedy = "start vLLM with VLLM_SERVER_DEV_MODE=1"

    def __init__(self, connection):
        self.model = member(connection.json("GET", "/v1/models"), "data", 0, "id")
        if self.model is None:
            raise ServerError("GET /v1/models: expected the name of a model, found none")

    @classmethod
    def recognised(cls, connection):
        return connection.call("GET", "/version")[0] == 200

    @classmethod
    def ready(cls, connection):
        """(whether requests can be sent, what it said); a server that sleeps is ready to be woken."""
        return health(connection)

    def load(self, connection, folder, version):
        connection.json(
            "POST", "/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": folder}}, self.remedy
        )
        connection.json("POST", "/reset_prefix_cache", remedy=self.remedy)

    def sleep(self, connection):
        connection.json("POST", "/sleep?level=2", remedy=f"{self.remedy} and --enable-sleep-mode")

    def wake(self, connection, folder, version):
        """The weights are dropped at level 2: memory for them first, then the new ones, then the cache's memory."""
        connection.json("POST", "/wake_up?tags=weights", remedy=f"{self.remedy} and --enable-sleep-mode")
        self.load(connection, folder, version)
        connection.json("POST", "/wake_up?tags=kv_cache")

    def asleep(self, connection):
        status, text = connection.call("GET", "/is_sleeping")
        return status == 200 and bool(member(json.loads(text or "{}"), "is_sleeping"))

    def generate(self, connection, row):
        answer = connection.json(
            "POST",
            "/v1/completions",
            {
                "model": self.model,
                "prompt": row.prompt_ids,
                "max_tokens": row.max_new_tokens,
                "temperature": row.temperature,
                "top_p": row.top_p,
                "seed": row.seed,
                "stop": row.stop or None,
                "stop_token_ids": row.stop_token_ids,
                "logprobs": 0,
                "return_token_ids": True,
            },
        )
        choice = member(answer, "choices", 0)
        row.ids = member(choice, "token_ids")
        if row.ids is None:
            raise ServerError("POST /v1/completions: expected choices[0].token_ids, which return_token_ids asks for")
        row.logprobs = member(choice, "logprobs", "token_logprobs")
        row.finish_reason = member(choice, "finish_reason")
        read = member(choice, "prompt_token_ids")
        if read is not None and read != row.prompt_ids:
            raise ServerError(
                f"POST /v1/completions: the server read {len(read)} ids in place of {row.prompt_ids[:8]}..."
            )


class Sglang:
    """SGLang's own server, after the source of SGLang 0.5.23. Its log-probabilities are those after the temperature,
    unless SGLANG_RETURN_ORIGINAL_LOGPROB=1 is set, and a request's seed counts with --enable-deterministic-inference
    alone."""

    name = "sglang"
    remedy = "this SGLang is too old"
    # The version of the weights that says that the memory is released. The server does not say so itself, and must then
    # be asked for no token, not even by /health, and released memory can be taken again once only.
    ASLEEP = "asleep"

    def __init__(self, connection):
        pass

    @staticmethod
    def info(connection):
        """What the server says of its model; None: it is no SGLang. 0.5 has the second address under its old name."""
        for path in ("/model_info", "/get_model_info"):
            status, text = connection.call("GET", path)
            if status == 200:
                return json.loads(text)
        return None

    @classmethod
    def recognised(cls, connection):
        return cls.info(connection) is not None

    @classmethod
    def ready(cls, connection):
        """As Vllm.ready(). /health writes a token, which a server that sleeps cannot."""
        asleep = member(cls.info(connection), "weight_version") == cls.ASLEEP
        return (True, "asleep") if asleep else health(connection)

    def load(self, connection, folder, version):
        body = {"model_path": folder, "weight_version": version, "flush_cache": True}
        answer = connection.json("POST", "/update_weights_from_disk", body, self.remedy)
        if not member(answer, "success"):
            raise ServerError(f"POST /update_weights_from_disk: {member(answer, 'message') or answer}")

    def sleep(self, connection):
        option = "start SGLang with --enable-memory-saver"
        if member(connection.json("GET", "/server_info", remedy=self.remedy), "enable_memory_saver") is False:
            raise ServerError(f"GET /server_info: enable_memory_saver is false, so that no memory is freed; {option}")
        connection.json("POST", "/release_memory_occupation", {}, option)
        body = {"new_version": self.ASLEEP, "abort_all_requests": False}
        connection.json("POST", "/update_weight_version", body, self.remedy)

    def wake(self, connection, folder, version):
        """Memory for the weights first, then the new ones, then the rest."""
        connection.json("POST", "/resume_memory_occupation", {"tags": ["weights"]}, self.remedy)
        self.load(connection, folder, version)
        connection.json("POST", "/resume_memory_occupation", {"tags": ["kv_cache", "cuda_graph"]}, self.remedy)

    def asleep(self, connection):
        return member(self.info(connection), "weight_version") == self.ASLEEP

    def generate(self, connection, row):
        answer = connection.json(
            "POST",
            "/generate",
            {
                "input_ids": row.prompt_ids,
                "return_logprob": True,
                "sampling_params": {
                    "max_new_tokens": row.max_new_tokens,
                    "temperature": row.temperature,
                    "top_p": row.top_p,
                    "stop": row.stop or None,
                    "stop_token_ids": row.stop_token_ids,
                    "sampling_seed": row.seed,
                },
            },
        )
        row.ids = member(answer, "output_ids")
        if row.ids is None:
            raise ServerError("POST /generate: expected output_ids, found none")
        entries = member(answer, "meta_info", "output_token_logprobs")
        row.logprobs = None if entries is None else [entry[0] for entry in entries]
        row.finish_reason = member(answer, "meta_info", "finish_reason", "type")
        row.written_by = member(answer, "meta_info", "weight_version")


SERVERS = {kind.name: kind for kind in (Vllm, Sglang)}


def health(connection):
    status, text = connection.call("GET", "/health")
    return status == 200, f"GET /health: status {status}: {text[:200]!r}"


def wait_for(connection, kind, seconds):
    """Waits until a server of this kind, `auto`: of any kind, is ready. ServerError: none is, with what it did last."""
    deadline = time.monotonic() + seconds
    kinds = list(SERVERS.values()) if kind == "auto" else [SERVERS[kind]]
    while True:
        last = f"none of {', '.join(one.name for one in kinds)} answers: name it with --kind, or look at --url"
        try:
            found = next((one for one in kinds if one.recognised(connection)), None)
            if found is not None:
                ready, last = found.ready(connection)
                if ready:
                    return found
        except (ServerError, ValueError) as error:
            last = str(error)
        if time.monotonic() > deadline:
            raise ServerError(f"the server was not ready within {seconds:g} s: {last}")
        time.sleep(0.2)
