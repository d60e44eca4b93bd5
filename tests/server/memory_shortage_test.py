"""`foresail serve` while the system gives it no more memory: requests end, the process does not.

memory_shortage_test.py FORESAIL MODEL
"""

import http.client
import json
import random
import re
import resource
import socket
import subprocess
import sys
import threading
import time
import unittest

import foresail_serve

GREEDY = {"prompt": "The old captain", "max_tokens": 24, "temperature": 0}


class Server(foresail_serve.Server):
    def __init__(self, *flags):
        super().__init__("--threads", "1", "--speculative-algorithm", "MTP", "--speculative-fixed",
                         *flags, stderr=subprocess.PIPE)

    def end(self):
        self.process.kill()
        self.process.communicate()

    def ask(self, body, method="POST", path="/v1/completions"):
        """Status and text, or 0 where the connection ended without an answer."""
        connection = http.client.HTTPConnection(self.address, timeout=60)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read().decode()
        except (http.client.HTTPException, ConnectionError):
            return 0, ""
        finally:
            connection.close()

    def text(self):
        status, body = self.ask(json.dumps(GREEDY))
        assert status == 200, body
        return json.loads(body)["choices"][0]["text"]

    def metric(self, name):
        return float(re.search(rf"^{name}\{{.*\}} (\S+)$", self.ask(None, "GET", "/metrics")[1],
                               re.M)[1])

    def bytes_of(self, kind):
        with open(f"/proc/{self.process.pid}/status") as status:
            return int(re.search(rf"{kind}:\s+(\d+) kB", status.read())[1]) * 1024

    def data_bytes(self):
        return self.bytes_of("VmData")

    def may_take(self, more_bytes):
        """So much more than now; None: what it wants."""
        limit = resource.RLIM_INFINITY if more_bytes is None else self.data_bytes() + more_bytes
        resource.prlimit(self.process.pid, resource.RLIMIT_DATA, (limit, resource.RLIM_INFINITY))


class MemoryShortage(unittest.TestCase):
    def test_requests_end_and_the_server_does_not(self):
        server = Server()
        self.addCleanup(server.end)
        text = server.text()
        small = json.dumps(GREEDY)
        bodies = [small, json.dumps(GREEDY | {"stream": True, "n": 4}),
                  json.dumps({"prompt": "the old captain " * 400, "max_tokens": 8}),
                  json.dumps(GREEDY | {"logprobs": 5, "echo": True}),
                  json.dumps({"prompt": [[7] * 100] * 5000}),
                  '{"prompt":[' + "0," * 6_000_000 + "0]}"]  # its values take 100 MB
        draw = random.Random(7)
        answers = []

        def ask(body):
            answers.append((body, *server.ask(body)))

        for _ in range(25):
            server.may_take(draw.choice([0, 100_000, 2_000_000, 20_000_000]))
            threads = [threading.Thread(target=ask, args=[draw.choice(bodies)]) for _ in range(12)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            time.sleep(0.02)
            if server.process.poll() is not None:
                self.fail(f"it ended with {server.process.returncode}: "
                          + server.process.communicate()[1][-2000:])
        statuses = [status for _, status, _ in answers]
        counts = {status: statuses.count(status) for status in set(statuses)}
        print("answers under shortage:", counts, file=sys.stderr)
        self.assertLessEqual(set(counts), {0, 200, 400, 500, 503})
        self.assertGreater(counts.get(503, 0) + counts.get(500, 0), 20)
        for body, status, answer in answers:
            if status == 200 and body == small:  # whoever was answered was told the right thing
                self.assertEqual(json.loads(answer)["choices"][0]["text"], text)
        server.may_take(None)
        self.assertEqual(server.text(), text)
        self.assertGreater(server.metric("foresail:memory_reserve_draws_total"), 0)
        until = time.monotonic() + 10  # an answer is out before its request is counted as ended
        while server.metric("foresail:num_requests_running") and time.monotonic() < until:
            time.sleep(0.05)
        self.assertEqual(server.metric("foresail:num_requests_running"), 0)
        server.term()
        self.assertEqual(server.process.communicate(timeout=60)[0], "")
        self.assertEqual(server.process.returncode, 0)

    def test_what_is_announced_takes_no_memory(self):
        server = Server()
        self.addCleanup(server.end)
        text = server.text()
        before = server.data_bytes()
        host, port = server.address.split(":")
        sockets = [socket.create_connection((host, int(port))) for _ in range(60)]
        for sender in sockets:
            self.addCleanup(sender.close)
            sender.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
                           b"Content-Length: 33000000\r\n\r\n{")
        until = time.monotonic() + 30
        while server.metric("foresail:http_incoming_bytes") < 60 and time.monotonic() < until:
            time.sleep(0.05)
        self.assertEqual(server.metric("foresail:http_incoming_bytes"), 60)
        self.assertLess(server.data_bytes() - before, 200_000_000)
        self.assertEqual(server.text(), text)

    def test_a_body_that_was_read_is_gone_while_its_request_waits(self):
        server = Server("--max-running-requests", "1")
        self.addCleanup(server.end)
        server.text()
        body = json.dumps({"prompt": "the", "max_tokens": 900, "ignore_eos": True, "n": 8,
                           "x": "x" * 16_000_000})
        before = server.data_bytes()
        for _ in range(24):
            threading.Thread(target=server.ask, args=[body], daemon=True).start()
            time.sleep(0.2)
            while server.metric("foresail:http_incoming_bytes"):
                time.sleep(0.02)
        self.assertGreater(server.metric("foresail:num_requests_waiting"), 10)
        self.assertLess(server.data_bytes() - before, 250_000_000)

    def test_what_a_large_body_took_is_given_back_when_it_is_quiet(self):
        server = Server()
        self.addCleanup(server.end)
        server.text()
        before = server.bytes_of("VmRSS")
        message = {"role": "user", "content": "a b c d e"}
        body = json.dumps({"messages": [message] * 100_000, "max_tokens": 1})
        for _ in range(3):
            status, answer = server.ask(body, path="/v1/chat/completions")
            self.assertEqual((status, "maximum context length" in answer), (400, True), answer)
        self.assertGreater(server.bytes_of("VmHWM") - before, 80_000_000)
        until = time.monotonic() + 20
        while server.bytes_of("VmRSS") - before > 20_000_000:
            self.assertLess(time.monotonic(), until, "the server keeps what it has freed")
            time.sleep(0.1)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
