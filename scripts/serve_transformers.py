#!/usr/bin/env python3
"""An inference server that samples with transformers: an engine for onpolicy.server without vLLM, on a CPU or GPU.

  onpolicy:
    server: .venv/bin/python scripts/serve_transformers.py --model {model} --port 8000
    command: >-
      .venv/bin/python scripts/rollout_http.py --url http://127.0.0.1:8000 --model {model} --version {version}
      --prompts {prompts} --output {output} --concurrency 256

It has those addresses of vLLM's server that scripts/rollout_http.py uses, and lives through all rounds, so that a round
does not start Python. The requests that wait when a batch ends are the next batch. It is slower than vLLM: a batch goes
on until its longest completion ends.
"""

import script_path

import gc
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from rollout.exchange import Row
from rollout.sampling import add_model_arguments, batches_of, load_model, load_tokenizer, write_batch
from shared.command_line import argument_parser, at_least, fail

GATHER = 0.05  # seconds without a new request after which a batch begins
REQUEST = ("prompt", "max_tokens", "temperature", "top_p", "seed")  # members that a request must have


class BadRequest(Exception):
    pass


class Engine:
    """The model, and the requests that wait. One thread, run(), computes; those of the connections wait for it."""

    def __init__(self, args):
        self._args = args
        self._changed = threading.Condition()
        self._waiting = []  # (row, event, [error])
        self._computing = threading.Lock()  # held while the model is used or replaced
        self.folder, self._model, self._tokenizer = args.model, None, None
        self.load(args.model)

    @property
    def asleep(self):
        return self._model is None

    def load(self, folder):
        """Replaces the weights. ValueError or OSError: the folder is no model; the server then has none."""
        with self._computing:
            self._release()
            self._model = load_model(folder, self._args)
            self._tokenizer = None
            self.folder = folder

    def sleep(self):
        with self._computing:
            self._release()

    def _release(self):
        import torch

        self._model = None
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def complete(self, row):
        """Continues a row; returns when it has ended. BadRequest: it has ids that are none of the model's;
        RuntimeError: it could not be computed."""
        model = self._model
        if model is not None and max(row.prompt_ids) >= (most := model.get_input_embeddings().num_embeddings):
            raise BadRequest(f"prompt: expected ids below {most}, found {max(row.prompt_ids)}")
        ended, error = threading.Event(), []
        with self._changed:
            self._waiting.append((row, ended, error))
            self._changed.notify()
        ended.wait()
        if error:
            raise RuntimeError(error[0])

    def run(self):
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                while len(self._waiting) < self._args.batch_size and self._changed.wait(GATHER):
                    pass
                waiting, self._waiting = self._waiting, []
            entries = {id(row): (ended, error) for row, ended, error in waiting}
            for batch in batches_of([row for row, _, _ in waiting], self._args.batch_size):
                try:
                    self._write(batch, entries)
                except Exception as failure:  # of the model or the device: the requests are answered with it
                    for row in batch:
                        entries[id(row)][1].append(f"{type(failure).__name__}: {failure}")
                finally:
                    for row in batch:
                        entries[id(row)][0].set()

    def _write(self, batch, entries):
        with self._computing:
            if self._model is None:
                raise RuntimeError("the server sleeps: its weights must be loaded first")
            if self._tokenizer is None and any(row.stop for row in batch):
                self._tokenizer = load_tokenizer(self.folder)
            write_batch(self._model, self._tokenizer, batch, lambda row: entries[id(row)][0].set())


def row_of(body):
    """A request in vLLM's form as a row. BadRequest: a member is missing or wrong."""
    missing = [name for name in REQUEST if name not in body]
    if missing:
        raise BadRequest(f"expected the members {', '.join(REQUEST)}, found none named {', '.join(missing)}")
    prompt = body["prompt"]
    if not (isinstance(prompt, list) and prompt and all(isinstance(token, int) for token in prompt)):
        raise BadRequest(f"prompt: expected a list of token ids, found {str(prompt)[:80]}")
    try:
        return Row(
            id=0,
            prompt_ids=prompt,
            seed=int(body["seed"]),
            max_new_tokens=int(body["max_tokens"]),
            temperature=float(body["temperature"]),
            top_p=float(body["top_p"]),
            stop=body.get("stop") or [],
            stop_token_ids=body.get("stop_token_ids") or [],
            weight_version="",
        )
    except (TypeError, ValueError) as error:
        raise BadRequest(str(error)) from None


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    engine = None  # set by main()

    def log_message(self, *_):
        pass

    def answer(self, status, body=None):
        data = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        import transformers

        answers = {
            "/health": lambda: None,
            "/version": lambda: {"version": f"transformers {transformers.__version__}"},
            "/v1/models": lambda: {"data": [{"id": str(self.engine.folder)}]},
            "/is_sleeping": lambda: {"is_sleeping": self.engine.asleep},
        }
        found = answers.get(self.path)
        self.answer(200, found()) if found else self.answer(404, {"error": f"no address {self.path}"})

    def do_POST(self):
        path = self.path.partition("?")[0]
        calls = {
            "/v1/completions": self.complete,
            "/collective_rpc": self.reload,
            "/reset_prefix_cache": lambda _: None,  # there is none
            "/sleep": lambda _: self.engine.sleep(),
            "/wake_up": lambda _: None,  # the memory is taken when the weights are loaded
        }
        try:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or "{}")
            if path not in calls:
                self.answer(404, {"error": f"no address {path}"})
            else:
                self.answer(200, calls[path](body))
        except (BadRequest, ValueError) as error:
            self.answer(400, {"error": str(error)})
        except (OSError, RuntimeError) as error:
            self.answer(500, {"error": str(error)})

    def reload(self, body):
        folder = (body.get("kwargs") or {}).get("weights_path")
        if body.get("method") != "reload_weights" or not folder:
            raise BadRequest(f"expected the method reload_weights with weights_path, found {str(body)[:200]}")
        self.engine.load(folder)

    def complete(self, body):
        row = row_of(body)
        self.engine.complete(row)
        return {
            "choices": [
                {
                    "token_ids": row.ids,
                    "prompt_token_ids": row.prompt_ids,
                    "logprobs": {"token_logprobs": row.logprobs},
                    "finish_reason": row.finish_reason,
                }
            ]
        }


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024  # connections that wait to be accepted: all requests of a round may come at once


def main():
    parser = argument_parser(__doc__)
    add = parser.add_argument
    add("--model", required=True, metavar="FOLDER", help="a Hugging Face folder")
    add("--host", default="127.0.0.1", help="address to listen at (default 127.0.0.1: this machine alone)")
    add("--port", type=int, required=True, help="0: any that is free, which the first line of the output names")
    add("--batch-size", type=at_least(1), default=256, metavar="N", help="completions written together (default 256)")
    add_model_arguments(add)
    args = parser.parse_args()
    try:
        engine = Engine(args)
    except (OSError, ValueError) as error:
        fail(f"{args.model}: {error}")
    Handler.engine = engine
    threading.Thread(target=engine.run, daemon=True).start()
    try:
        server = Server((args.host, args.port), Handler)
    except OSError as error:
        fail(f"--port {args.port}: {error}")
    print(f"http://{args.host}:{server.server_address[1]} serves {args.model}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    sys.exit(main())
