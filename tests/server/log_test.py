"""What `foresail serve` writes about requests: never prompts, outputs or keys, whatever becomes
of them.

log_test.py FORESAIL MODEL
"""

import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import unittest

from foresail_serve import MODEL, Server

# In every place where a client's text or a key may stand.
TEXT, KEY, ADMIN, WRONG = "qzxtext", "qzxkey", "qzxroot", "qzxwrong"
MARK = "qzx"
FIELDS = {
    "request": {"id", "path", "outcome", "choices", "finish", "prompt_tokens", "cached_tokens",
                "output_tokens", "ttft_ms", "total_ms", "accept_length"},
    "refused": {"id", "method", "path", "status", "param", "code"},
    "ignored_field": {"id", "path", "name"},
    "limits": {"body_bytes", "header_bytes", "header_fields", "unsent_bytes", "connections",
               "running_requests", "queued_requests", "n"},
    "listening": {"url", "model_path"},
    "stopping": {"timeout_s"},
}
PLAIN = {"max_tokens": 24, "temperature": 0, "ignore_eos": True}
MARKED = {"type": "object", "properties": {TEXT: {"const": TEXT}}, "required": [TEXT]}
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def said(text):
    return {"messages": [{"role": "system", "content": TEXT}, {"role": "user", "content": text}]}


ANSWERED = [  # path, fields
    (COMPLETIONS, {"prompt": f"The {TEXT} sailed", "echo": True, "logprobs": 2}),
    (COMPLETIONS, {"prompt": [f"{TEXT} one", f"{TEXT} two"], "n": 2, "stop": TEXT, "user": TEXT}),
    (COMPLETIONS, {"prompt": TEXT, "stream": True, "cache_salt": TEXT, "regex": f"{TEXT}[a-c]+"}),
    (CHAT, said(TEXT)),
    (CHAT, said(TEXT) | {"stream": True, "stream_options": {"include_usage": True}}),
    (CHAT, said(TEXT) | {"response_format": {"type": "json_schema", "json_schema": {
        "name": TEXT, "schema": MARKED}}}),
    ("/generate", {"text": TEXT, "sampling_params": {"max_new_tokens": 8, "stop": [TEXT]}}),
    ("/tokenize", {"prompt": TEXT}),
    (CHAT + "/render", said(TEXT)),
]
REFUSED = [  # path, body
    (COMPLETIONS, f'{{"prompt": "{TEXT}'),
    (COMPLETIONS, TEXT),
    (COMPLETIONS, f'"{TEXT}"'),
    (COMPLETIONS, f'{{"prompt": "{TEXT}", "prompt": "{TEXT}"}}'),
    (COMPLETIONS, b'{"prompt": "' + TEXT.encode() + b'\xff\xfe"}'),
    (COMPLETIONS, f'{{"prompt": "{TEXT}\\ud800"}}'),
    (COMPLETIONS, "[" * 5000 + f'"{TEXT}"'),
] + [(path, json.dumps(fields)) for path, fields in [
    (COMPLETIONS, {"prompt": TEXT, "max_tokens": TEXT}),
    (COMPLETIONS, {"prompt": TEXT, "model": TEXT}),
    (COMPLETIONS, {"prompt": TEXT, "temperature": [TEXT]}),
    (COMPLETIONS, {"prompt": f"{TEXT} " * 5000}),
    (COMPLETIONS, {"prompt": {TEXT: TEXT}}),
    (COMPLETIONS, {"prompt": TEXT, "regex": f"({TEXT}"}),
    (COMPLETIONS, {"prompt": TEXT, "logit_bias": {TEXT: 1}}),
    (COMPLETIONS, {"prompt": TEXT, "stop": [TEXT] * 100}),
    (CHAT, {"messages": [{"role": TEXT, "content": TEXT}]}),
    (CHAT, {"messages": TEXT}),
    (CHAT, said(TEXT) | {"tools": [{"type": TEXT}], "tool_choice": TEXT}),
    (CHAT, said(TEXT) | {"response_format": {"type": "json_schema", "json_schema": {
        "name": TEXT, "schema": {"type": TEXT, "pattern": f"({TEXT}"}}}}),
    (CHAT, said(TEXT) | {"chat_template": TEXT}),
    ("/generate", {"text": TEXT, "sampling_params": {"max_new_tokens": TEXT}}),
    ("/tokenize", {"prompt": 5, TEXT: TEXT}),
]]


def text_of(answer):
    return [choice.get("text") or choice.get("message", {}).get("content") or ""
            for choice in answer.get("choices", [])] + [answer.get("text", "")]


class LoggedServer:
    def __init__(self, form, folder):
        self.errors = open(os.path.join(folder, "log"), "w+", encoding="utf-8")
        keys = os.path.join(folder, "keys")
        with open(keys, "w", encoding="utf-8") as file:
            file.write(KEY + "\n")
        self.server = Server("--threads", "1", "--context-length", "1024", "--api-key-file", keys,
                             "--speculative-algorithm", "MTP", "--max-body-bytes", "262144",
                             log=form, stderr=self.errors,
                             env=os.environ | {"FORESAIL_ADMIN_API_KEY": ADMIN})

    def ask(self, path, body=None, key=KEY):
        host = self.server.address
        connection = http.client.HTTPConnection(host, timeout=60)
        connection.request("POST" if body is not None else "GET", path,
                           body.encode() if isinstance(body, str) else body,
                           {"Content-Type": "application/json", "Authorization": f"Bearer {key}"})
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer.status, content

    def send(self, data, wait_for=b"\r\n\r\n"):
        """What comes back of bytes that http.client would not send; then it leaves."""
        host, port = self.server.address.rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            connection.sendall(data)
            answer = b""
            while wait_for not in answer and (part := connection.recv(4096)):
                answer += part
            return answer

    def end(self):
        """All that it wrote, once it is gone."""
        assert self.server.stop() == 0
        self.errors.seek(0)
        with self.errors:
            return self.errors.read()


def head(method, target, body=b"", *fields):
    lines = [f"{method} {target} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {KEY}",
             "Content-Type: application/json", *fields]
    return "\r\n".join([*lines, "", ""]).encode() + body


class Logs(unittest.TestCase):
    def answered(self, server):
        """The outputs."""
        outputs = []
        for path, fields in ANSWERED:
            body = json.dumps((PLAIN if path.startswith("/v1/c") else {}) | fields)
            status, content = server.ask(path, body)
            self.assertEqual(status, 200, (path, body, content))
            if not fields.get("stream"):
                outputs += text_of(json.loads(content))
        return outputs

    def refused(self, server):
        for path, body in REFUSED:
            status, content = server.ask(path, body)
            self.assertIn(status, (400, 404), (path, body[:200], content))
        self.assertEqual(server.ask(COMPLETIONS, '{"prompt": "' + TEXT * 50000 + '"}')[0], 413)
        good = json.dumps({"prompt": TEXT, "max_tokens": 1})
        for key in (WRONG, KEY + WRONG, f"{KEY} {WRONG}", ""):
            self.assertEqual(server.ask(COMPLETIONS, good, key)[0], 401, key)
        self.assertEqual(server.ask("/flush_cache", "", KEY)[0], 403)
        self.assertEqual(server.ask("/flush_cache", "", ADMIN)[0], 200)
        self.assertEqual(server.ask(f"/v1/models?api_key={KEY}&q={TEXT}", key=WRONG)[0], 401)
        self.assertEqual(server.ask(f"/nothing?api_key={KEY}#{TEXT}")[0], 404)

    def malformed(self, server):
        body = json.dumps({"prompt": TEXT}).encode()
        for data in (
                head("GET", f"http://{KEY}:{KEY}@localhost/nothing?key={KEY}"),
                head("POST", COMPLETIONS, body, f"Content-Length: {TEXT}"),
                head("POST", COMPLETIONS, body + b"\r\n", "Transfer-Encoding: chunked"),
                head("POST", COMPLETIONS, body, f"Transfer-Encoding: {TEXT}"),
                head("GET", "/v1/models", b"", f"X-Request-Id: {KEY} {TEXT} \\\""),
                head("GET", "/v1/models", b"", f"X-Long: {TEXT * 20000}"),
                head("GET", "/v1/models", b"", f"{TEXT} without a colon"),
                TEXT.encode() + b" \x00\x01\r\n\r\n"):
            self.assertIn(b"HTTP/1.1 ", server.send(data), data[:300])

    def leaves(self, server):
        body = json.dumps({"prompt": TEXT, "stream": True} | PLAIN | {"max_tokens": 900}).encode()
        length = f"Content-Length: {len(body)}"
        self.assertIn(b"data: ", server.send(head("POST", COMPLETIONS, body, length), b"data: "))
        server.send(head("POST", COMPLETIONS, body[:20], length), b"")
        server.send(head("POST", COMPLETIONS, body, length), b"")

    def test_nothing_that_was_asked_or_answered_and_no_key(self):
        for form in ("json", "text"):
            with self.subTest(form), tempfile.TemporaryDirectory() as folder:
                server = LoggedServer(form, folder)
                outputs = [text for text in self.answered(server) if len(text) >= 12]
                self.refused(server)
                self.malformed(server)
                self.leaves(server)
                log = server.end()
                self.assertGreater(len(outputs), 5)
                for secret in [MARK, *outputs, *(json.dumps(text)[1:-1] for text in outputs)]:
                    self.assertNotIn(secret.lower(), log.lower())
                if form == "json":
                    self.look_at_lines(log)

    def look_at_lines(self, log):
        seen, events = [], []
        for line in log.splitlines():
            fields = json.loads(line)
            events.append(fields["event"])
            self.assertLessEqual(set(fields), {"time", "event"} | FIELDS[fields["event"]], line)
            if fields["event"] in ("request", "refused"):
                seen.append(fields.get("outcome") or fields["status"])
        self.assertEqual(events[:2], ["limits", "listening"])
        self.assertIn("stopping", events)
        for what in ("client_gone", 400, 401, 403, 404):
            self.assertIn(what, seen)
        self.assertGreaterEqual(len(seen), len(ANSWERED) - 2 + len(REFUSED))

    def test_a_refusal_says_why(self):
        asked = [({"prompt": "a", "max_tokens": TEXT}, KEY, (400, "max_tokens", None)),
                 ({"prompt": "a", "model": TEXT}, KEY, (404, "model", "model_not_found")),
                 ({"prompt": {TEXT: TEXT}}, KEY, (400, "prompt", None)),
                 ({"prompt": "a", "stream_options": {}}, KEY, (400, "stream_options", None)),
                 ({"prompt": "a b " * 2000}, KEY, (400, "prompt", "context_length_exceeded")),
                 ({"prompt": "a", "regex": "("}, KEY, (400, "regex", None)),
                 ({"prompt": "a"}, WRONG, (401, None, "invalid_api_key"))]
        for form in ("json", "text"):
            with self.subTest(form), tempfile.TemporaryDirectory() as folder:
                server = LoggedServer(form, folder)
                for fields, key, (status, param, code) in asked:
                    answer = server.ask(COMPLETIONS, json.dumps(fields), key)
                    error = json.loads(answer[1])["error"]
                    self.assertEqual((answer[0], error["param"], error["code"]),
                                     (status, param, code), fields)
                lines = [line for line in server.end().splitlines() if "refused" in line]
                self.assertEqual(len(lines), len(asked))
                for line, (_, _, (status, param, code)) in zip(lines, asked):
                    if form == "json":
                        told = json.loads(line)
                        self.assertEqual((told["status"], told.get("param"), told.get("code")),
                                         (status, param, code))
                        continue
                    end = f" status={status}"
                    for name, value in (("param", param), ("code", code)):
                        end += f' {name}="{value}"' if value else ""
                    self.assertTrue(line.endswith(end), (line, end))

    def test_tools_that_the_template_leaves_out(self):
        shows = "{{ tools | tojson }}{% for m in messages %}{{ m.content }}{% endfor %}"
        forced = ("--tool-call-parser", "deepseek_v3")
        with tempfile.TemporaryDirectory() as model:
            for name in os.listdir(MODEL):
                os.symlink(os.path.join(os.path.abspath(MODEL), name), os.path.join(model, name))
            with open(os.path.join(model, "chat_template.jinja"), "w", encoding="utf-8") as file:
                file.write(shows)
            for path, flags, count in ((MODEL, forced, 1), (MODEL, (), 0), (model, forced, 0),
                                       (MODEL, ("--tool-call-parser", "none"), 0)):
                server = Server("--threads", "1", "--context-length", "1024", *flags, model=path,
                                log="json", stderr=subprocess.PIPE)
                server.term()
                errors = server.process.communicate(timeout=60)[1]
                events = [json.loads(line)["event"] for line in errors.splitlines()]
                self.assertEqual(events.count("tools_not_shown"), count, (path, flags, errors))

    def test_a_field_that_nothing_reads_is_named_once(self):
        served = {  # among them fields that are read only where another has some value, and null
            COMPLETIONS: {"prompt": "a", "n": 1, "best_of": 1, "echo": False, "logprobs": 1,
                          "stop": ["x"], "logit_bias": {}, "suffix": None, "seed": 1, "stream": True,
                          "stream_options": {"include_usage": True}, "use_beam_search": False},
            CHAT: said("a") | {"model": None, "tools": [], "tool_choice": "none", "top_logprobs": 0,
                               "parallel_tool_calls": True, "reasoning_effort": "low",
                               "chat_template_kwargs": {"x": 1}, "add_generation_prompt": True,
                               "continue_final_message": False, "max_completion_tokens": 2,
                               "response_format": {"type": "text"}, "separate_reasoning": True},
            "/generate": {"text": "a", "return_logprob": False, "top_logprobs_num": 0, "rid": "r",
                          "sampling_params": {"max_new_tokens": 1, "top_k": -1, "regex": "a"}},
        }
        slips = [(COMPLETIONS, {"prompt": "a", "max_tokns": 1, "stops": "x", "user": TEXT}),
                 (COMPLETIONS, {"prompt": "a", "max_tokns": 2, f"{TEXT} {TEXT}": 1, TEXT * 9: 1}),
                 (CHAT, said("a") | {"max_token": 1, "stops": ["y"]}),
                 ("/generate", {"text": "a", "max_new_tokens": 1,
                                "sampling_params": {"max_tokens": 1, "max_new_tokens": 1}})]
        many = [(COMPLETIONS, {"prompt": "a"} | {f"slip_{i}_{j}": 1 for j in range(9)})
                for i in range(9)]
        with tempfile.TemporaryDirectory() as folder:
            server = LoggedServer("json", folder)
            for path, fields in [*served.items(), *slips, *many]:
                limit = {} if path == "/generate" else {"max_tokens": 1}
                status, answer = server.ask(path, json.dumps(limit | fields))
                self.assertEqual(status, 200, (path, fields, answer))
            lines = [json.loads(line) for line in server.end().splitlines()]
        told = [(line["path"], line["name"]) for line in lines if line["event"] == "ignored_field"]
        self.assertEqual(told[:6], [(COMPLETIONS, "max_tokns"), (COMPLETIONS, "stops"),
                                    (COMPLETIONS, "user"), (CHAT, "max_token"),
                                    ("/generate", "max_new_tokens"),
                                    ("/generate", "sampling_params.max_tokens")])
        self.assertEqual(len(told), 50)
        self.assertEqual(len(set(name for _, name in told)), 50)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
