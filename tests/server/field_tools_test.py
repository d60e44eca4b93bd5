"""The requests of the field's tools, and their answers read as those tools read them: lm-eval
(local-completions, sglang-generate), vllm bench serve, sglang's bench_serving and
bench_one_batch_server. Written by hand from their sources, since
the tools themselves are too large to install here; only the standard library is needed.

field_tools_test.py FORESAIL MODEL
"""

import json
import operator
import sys
import unittest
import urllib.request

from foresail_serve import Server

PROMPT = "Once upon a time"


class FieldTools(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--threads", "1", "--context-length", "1024",
                            "--speculative-algorithm", "MTP")
        cls.url = cls.server.url

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def open(self, path, fields=None):
        request = urllib.request.Request(
            self.url + path, None if fields is None else json.dumps(fields).encode(),
            {"Content-Type": "application/json", "Authorization": "Bearer EMPTY"})
        return urllib.request.urlopen(request, timeout=60)

    def ask(self, path, fields=None):
        with self.open(path, fields) as response:
            return json.load(response)

    def tokenize(self, text):
        return self.ask("/tokenize", {"prompt": text})["tokens"]

    # lm_eval/models/openai_completions.py, LocalCompletionsAPI

    def test_lm_eval_loglikelihood(self):
        contexts, whole = [], []
        for context, continuation in ((PROMPT, " there was"), ("The old captain", " zebra")):
            contexts.append(len(self.tokenize(context)))
            whole.append(self.tokenize(context + continuation))
        fields = {"model": "tales", "prompt": whole, "temperature": 0, "max_tokens": 1,
                  "logprobs": 1, "seed": 1234, "echo": True}
        outputs = self.ask("/v1/completions", fields)
        results = []
        for choice, context_len, tokens in zip(
                sorted(outputs["choices"], key=operator.itemgetter("index")), contexts, whole):
            logprobs = choice["logprobs"]
            self.assertEqual(len(logprobs["token_logprobs"]), len(tokens) + 1)
            self.assertEqual(len(logprobs["top_logprobs"]), len(tokens) + 1)
            values = logprobs["token_logprobs"][context_len:-1]
            is_greedy = all(value == max(top.values()) for value, top in
                            zip(values, logprobs["top_logprobs"][context_len:-1]))
            results.append((sum(values), is_greedy))
        self.assertLess(results[1][0], results[0][0])
        self.assertFalse(results[1][1])

    def test_lm_eval_generate_until(self):
        prompts = [self.tokenize(PROMPT), self.tokenize("The old captain")]
        outputs = self.ask("/v1/completions", {
            "model": "tales", "prompt": prompts, "max_tokens": 24, "temperature": 0,
            "stop": ["<|endoftext|>", "\n\n", "."], "seed": 1234})
        texts = [None] * len(outputs["choices"])
        for choice in outputs["choices"]:
            texts[choice["index"]] = choice["text"]
        self.assertEqual(len(texts), 2)
        for text in texts:
            self.assertTrue(text)
            self.assertNotIn(".", text)

    # lm_eval/models/sglang_generate_API.py

    def test_lm_eval_sglang_generate(self):
        contexts, whole = [], []
        for context, continuation in ((PROMPT, " there was"), ("The old captain", " zebra")):
            contexts.append(len(self.tokenize(context)))
            whole.append(self.tokenize(context + continuation))
        outputs = self.ask("/generate", {
            "input_ids": whole, "sampling_params": {"max_new_tokens": 1, "temperature": 0},
            "return_logprob": True, "top_logprobs_num": 1, "logprob_start_len": 0})
        results = []
        for output, context_len, tokens in zip(outputs, contexts, whole):
            logprobs = output["meta_info"]["input_token_logprobs"]
            top = output["meta_info"]["input_top_logprobs"]
            self.assertEqual([entry[1] for entry in logprobs], tokens)
            is_greedy = all(entry[1] == best[0][1] for entry, best in
                            zip(logprobs[context_len:], top[context_len:]))
            results.append((sum(entry[0] for entry in logprobs[context_len:]), is_greedy))
        self.assertLess(results[1][0], results[0][0])
        self.assertFalse(results[1][1])
        # The same figures as in OpenAI's shape.
        choices = self.ask("/v1/completions", {"prompt": whole, "temperature": 0, "max_tokens": 1,
                                               "logprobs": 1, "echo": True})["choices"]
        for choice, (total, _), context_len, tokens in zip(choices, results, contexts, whole):
            values = choice["logprobs"]["token_logprobs"][context_len:len(tokens)]
            self.assertAlmostEqual(sum(values), total, places=4)

    # sglang/bench_one_batch_server.py

    def test_sglang_bench_one_batch_server(self):
        answers = self.ask("/generate", {
            "input_ids": [self.tokenize(PROMPT)] * 2,
            "sampling_params": {"temperature": 0.0, "max_new_tokens": 8, "ignore_eos": True},
            "return_logprob": True, "logprob_start_len": -1, "stream": False})
        for answer in answers:
            self.assertEqual(answer["meta_info"]["finish_reason"]["type"], "length")
            self.assertEqual(len(answer["meta_info"]["output_token_logprobs"]), 8)

    # vllm/benchmarks/lib/endpoint_request_func.py and serve.py

    def read_vllm(self, path, payload, text_of):
        text, usage, chunks = "", None, 0
        with self.open(path, payload) as response:
            self.assertEqual(response.status, 200)
            for line in response.read().decode().split("\n\n"):
                if not line or line.startswith(":"):
                    continue
                chunk = line.removeprefix("data: ")
                if chunk == "[DONE]":
                    continue
                data = json.loads(chunk)
                if choices := data.get("choices"):
                    chunks += 1
                    text += text_of(choices[0]) or ""
                elif usage_of := data.get("usage"):
                    usage = usage_of
        self.assertGreater(chunks, 1)
        return text, usage

    def spec_decode(self):
        """fetch_spec_decode_metrics()"""
        counts, at = {"drafts": 0, "draft_tokens": 0, "accepted_tokens": 0}, {}
        with self.open("/metrics") as response:
            for line in response.read().decode().split("\n"):
                if not line.startswith("vllm:spec_decode"):
                    continue
                value = int(float(line.split()[-1]))
                if "num_drafts" in line:
                    counts["drafts"] += value
                elif "num_draft_tokens" in line:
                    counts["draft_tokens"] += value
                elif "num_accepted_tokens_per_pos" in line:
                    position = int(line.split('position="')[1].split('"')[0])
                    at[position] = at.get(position, 0) + value
                elif "num_accepted_tokens" in line:
                    counts["accepted_tokens"] += value
        return counts, at

    def test_vllm_bench_serve(self):
        before, _ = self.spec_decode()
        text, usage = self.read_vllm("/v1/completions", {
            "model": "tales", "prompt": PROMPT, "repetition_penalty": 1.0, "max_tokens": 40,
            "logprobs": None, "stream": True, "stream_options": {"include_usage": True},
            "temperature": 0.0, "ignore_eos": True}, lambda choice: choice.get("text"))
        self.assertEqual(usage["completion_tokens"], 40)
        self.assertGreater(len(text), 40)
        after, at = self.spec_decode()
        drafts = after["drafts"] - before["drafts"]
        accepted = after["accepted_tokens"] - before["accepted_tokens"]
        self.assertGreater(drafts, 0)
        self.assertTrue(1 < 1 + accepted / drafts <= 4)
        self.assertEqual(sum(at.values()), after["accepted_tokens"])
        self.assertEqual(sorted(at), [0, 1, 2])

    def test_vllm_bench_serve_chat(self):
        _, usage = self.read_vllm("/v1/chat/completions", {
            "model": "tales", "messages": [{"role": "user", "content": [
                {"type": "text", "text": PROMPT}]}],
            "max_completion_tokens": 20, "stream": True, "ignore_eos": True,
            "stream_options": {"include_usage": True}},
            lambda choice: choice["delta"].get("content"))
        self.assertEqual(usage["completion_tokens"], 20)
        self.assertEqual(self.ask("/v1/models")["data"][0]["root"], "tales")

    # sglang/bench_serving.py

    def test_sglang_bench_serving(self):
        text, output_len, steps = "", 0, []
        with self.open("/generate", {
                "text": PROMPT, "sampling_params": {"temperature": 0.0, "max_new_tokens": 40,
                                                    "ignore_eos": True},
                "stream": True, "lora_path": None, "return_logprob": False,
                "return_routed_experts": False, "logprob_start_len": -1}) as response:
            for line in response:
                line = line.strip()
                if not line:
                    continue
                chunk = line.decode().removeprefix("data: ")
                if chunk == "[DONE]":
                    continue
                data = json.loads(chunk)
                if not data.get("text"):
                    continue
                self.assertTrue(data["text"].startswith(text))
                text = data["text"]
                new = data["meta_info"]["completion_tokens"] - output_len
                if new == 0:
                    continue
                steps.append(new)
                output_len += new
        self.assertEqual(output_len, 40)
        self.assertGreater(max(steps), 1)
        info = self.ask("/server_info")
        self.assertTrue(1 < info["internal_states"][0]["avg_spec_accept_length"] <= 4)
        self.assertEqual(self.ask("/get_server_info")["version"], info["version"])
        with self.open("/flush_cache", {}) as response:
            self.assertEqual(response.status, 200)

    def test_sglang_bench_serving_chat(self):
        text, output_len = "", 0
        with self.open("/v1/chat/completions", {
                "model": "tales", "messages": [{"role": "user", "content": PROMPT}],
                "temperature": 0.0, "max_completion_tokens": 20, "stream": True,
                "ignore_eos": True, "stream_options": {"include_usage": True}}) as response:
            for line in response:
                line = line.strip()
                if not line or line == b"data: [DONE]":
                    continue
                data = json.loads(line.decode().removeprefix("data: "))
                if data["choices"]:
                    text += data["choices"][0].get("delta", {}).get("content", "")
                output_len = (data.get("usage") or {}).get("completion_tokens", output_len)
        self.assertEqual(output_len, 20)
        self.assertTrue(text)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
