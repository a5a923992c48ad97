#!/usr/bin/env python3
"""A server that answers as vLLM's or SGLang's does, for scripts/rollout_http.py: vLLM's part is written after its
documentation and sources (0.33), SGLang's after its source alone (0.5.23: entrypoints/http_server.py,
managers/io_struct.py, managers/tokenizer_manager.py, managers/scheduler_components/weight_updater.py). What it writes
follows from a request's seed; `fault` makes it break. Started as a program, it serves until it is killed."""

import argparse
import json
import os
import random
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

END = 2
SGLANG_MEMORY = ("kv_cache", "weights", "cuda_graph")


class StandIn:
    """`kind`: vllm or sglang. `calls`: what was asked, in order; `loaded`: the folders of weights."""

    def __init__(self, kind, fault="", vocab=100, port=0, logprob=-0.5):
        self.kind, self.fault, self.vocab, self.logprob = kind, fault, vocab, logprob
        self.calls, self.loaded, self.version = [], [], "default"
        self.failures = 0
        self.asleep = False  # vLLM
        self.released = set()  # SGLang
        self.dead = False  # whether something was asked that ends a real server
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                owner.answer(self, None)

            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                owner.answer(self, json.loads(body) if body else None)

        self.server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def answer(self, handler, body):
        path = handler.path
        self.calls.append(path)
        status, answer = getattr(self, self.kind)(path, body)
        if self.dead:
            handler.connection.shutdown(socket.SHUT_RDWR)
            return
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        generating = path in ("/v1/completions", "/generate")
        if generating and self.fault == "once" and self.failures < 3:
            self.failures += 1
            status, data = 500, b"CUDA error"
        elif generating and self.fault == "500":
            status, data = 500, b"CUDA out of memory"
        elif generating and self.fault == "garbage":
            data = b"<html>"
        elif generating and self.fault == "hang":
            time.sleep(30)
        elif generating and self.fault == "crash":
            handler.connection.shutdown(socket.SHUT_RDWR)
            return
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        for byte in range(len(data)) if generating and self.fault == "drip" else ():
            handler.wfile.write(data[byte : byte + 1])
            handler.wfile.flush()
            time.sleep(0.3)
        if not (generating and self.fault == "drip"):
            handler.wfile.write(data)

    def completion(self, seed, most, end=END):
        numbers = random.Random(seed)
        ids = [numbers.randint(3, self.vocab - 1) for _ in range(numbers.randint(1, most))]
        stopped = len(ids) < most
        return [*ids, end] if stopped else ids, "stop" if stopped else "length"

    def logprobs(self, ids):
        return None if self.logprob is None else [self.logprob] * len(ids)

    def vllm(self, path, body):
        if path == "/health":
            return 200, b""
        if path == "/version":
            return 200, {"version": "0.33.0"}
        if path == "/v1/models":
            return 200, {"data": [{"id": "student"}]}
        if path == "/is_sleeping":
            return 200, {"is_sleeping": self.asleep}
        if path == "/v1/completions":
            assert body["model"] == "student" and body["return_token_ids"] and body["logprobs"] == 0
            ids, reason = self.completion(body["seed"], body["max_tokens"], body["stop_token_ids"][0])
            choice = {"finish_reason": reason, "logprobs": {"token_logprobs": self.logprobs(ids)}, "token_ids": ids}
            if self.fault == "old":
                del choice["token_ids"]
            if self.fault == "template":
                choice["prompt_token_ids"] = [1, *body["prompt"]]
            return 200, {"choices": [choice]}
        if self.fault == "no dev mode":
            return 404, {"detail": "Not Found"}
        if path == "/collective_rpc":
            assert body["method"] == "reload_weights"
            self.loaded.append(body["kwargs"]["weights_path"])
            return 200, {"results": [None]}
        if path.startswith("/sleep") or path.startswith("/wake_up"):
            self.asleep = path.startswith("/sleep")
            return 200, b""
        return (200, b"") if path == "/reset_prefix_cache" else (404, {"detail": "Not Found"})

    def sglang(self, path, body):
        if path in ("/health", "/generate") and self.released:
            self.dead = True  # it computes with memory that is not there
            return 500, b""
        if path == "/health":
            return 200, b""
        if path in ("/model_info", "/get_model_info") and (self.fault == "old names") == (path == "/get_model_info"):
            return 200, {"model_path": "student", "is_generation": True, "weight_version": self.version}
        if path == "/server_info":
            return 200, {"version": "0.5.23", "enable_memory_saver": self.fault != "no memory saver"}
        if path == "/update_weight_version":
            self.version = body["new_version"]
            return 200, {"success": True, "message": "", "new_version": self.version}
        if path == "/update_weights_from_disk":
            return self.sglang_update(body)
        if path == "/release_memory_occupation":
            self.released = set(body.get("tags") or SGLANG_MEMORY)
            return 200, None
        if path == "/resume_memory_occupation":
            tags = set(body.get("tags") or SGLANG_MEMORY)
            if not tags <= self.released:
                self.dead = True  # KeyError in the scheduler, which ends the server
                return 500, b""
            self.released -= tags
            return 200, None
        if path == "/generate":
            return self.sglang_generate(body)
        return 404, {"detail": "Not Found"}

    def sglang_update(self, body):
        self.loaded.append(body["model_path"])
        if self.fault == "dies" and len(self.loaded) == 2:
            print("server: CUDA error: an illegal memory access", flush=True)
            self.dead = True  # the connection is closed some time before the process has ended
            threading.Timer(1.0, os._exit, [7]).start()
            return 500, b""
        assert body["flush_cache"] and "weights" not in self.released
        answer = {"success": True, "message": "Succeeded to update model weights.", "num_paused_requests": 0}
        if self.fault == "refused":
            return 400, answer | {"success": False, "message": "The shape of lm_head.weight differs"}
        if self.fault != "stale":
            self.version = body["weight_version"]
        return 200, answer

    def sglang_generate(self, body):
        given = body["sampling_params"]
        ids, reason = self.completion(given["sampling_seed"], given["max_new_tokens"], given["stop_token_ids"][0])
        finished = {"type": reason} | ({"matched": ids[-1]} if reason == "stop" else {"length": len(ids)})
        info = {"id": "1", "finish_reason": finished, "prompt_tokens": len(body["input_ids"]),
                "weight_version": self.version, "completion_tokens": len(ids)}  # fmt: skip
        if self.logprob is not None:
            info["output_token_logprobs"] = [[self.logprob, token, None] for token in ids]
        return 200, {"text": "", "output_ids": ids, "meta_info": info}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--vocab", type=int, required=True)
    parser.add_argument("--fault", default="")
    parser.add_argument("--mark", default="")  # stands in the command line
    args = parser.parse_args()
    StandIn(args.kind, args.fault, args.vocab, args.port, logprob=None)
    threading.Event().wait()


if __name__ == "__main__":
    main()
