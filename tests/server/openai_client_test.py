"""The official Python client against the real server: what a user of OpenAI's API would try first.

Run by tests/server/run_openai_client: openai_client_test.py FORESAIL MODEL
"""

import json
import subprocess
import sys
import time
import unittest
import urllib.request
from typing import Annotated, Literal

import openai
import pydantic

import foresail_serve
from foresail_serve import FORESAIL, MODEL

PROMPT = "Once upon a time"


class Server(foresail_serve.Server):
    def __init__(self, *flags):
        super().__init__("--threads", "1", "--context-length", "1024",
                         "--speculative-algorithm", "MTP", *flags)

    def client(self, key="unused", retries=0):
        return openai.OpenAI(base_url=self.url + "/v1", api_key=key, max_retries=retries)


class OpenAiClient(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.client = cls.server.client()

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def complete(self, **fields):
        fields = {"model": "tales", "prompt": PROMPT, "max_tokens": 16, "temperature": 0} | fields
        return self.client.completions.create(**fields)

    def chat(self, **fields):
        fields = {"model": "tales", "max_tokens": 16, "temperature": 0,
                  "messages": [{"role": "user", "content": "Tell me a tale"}]} | fields
        return self.client.chat.completions.create(**fields)

    def test_models(self):
        self.assertIn("tales", [model.id for model in self.client.models.list()])
        self.assertEqual(self.client.models.retrieve("tales").id, "tales")
        with self.assertRaises(openai.NotFoundError) as caught:
            self.client.models.retrieve("other")
        self.assertEqual(caught.exception.code, "model_not_found")

    def test_completion(self):
        answer = self.complete()
        self.assertEqual(answer.object, "text_completion")
        self.assertEqual(answer.choices[0].finish_reason, "length")
        self.assertEqual(answer.usage.completion_tokens, 16)
        self.assertTrue(answer._request_id)
        streamed = list(self.complete(stream=True))
        self.assertEqual("".join(chunk.choices[0].text for chunk in streamed),
                         answer.choices[0].text)

    def test_several_prompts_and_choices(self):
        answer = self.complete(prompt=[PROMPT, "The old captain"], n=2)
        self.assertEqual([choice.index for choice in answer.choices], [0, 1, 2, 3])
        self.assertEqual(answer.choices[0].text, answer.choices[1].text)

    def test_chat(self):
        answer = self.chat()
        message = answer.choices[0].message
        self.assertEqual(message.role, "assistant")
        self.assertIsNone(message.tool_calls)
        self.assertIsNone(message.refusal)
        text, usage, finishes = "", None, []
        for chunk in self.chat(stream=True, stream_options={"include_usage": True}):
            self.assertEqual(chunk.object, "chat.completion.chunk")
            for choice in chunk.choices:
                text += choice.delta.content or ""
                if choice.finish_reason:
                    finishes.append(choice.finish_reason)
            usage = chunk.usage or usage
        self.assertEqual(text, message.content)
        self.assertEqual(finishes, ["length"])
        self.assertEqual(usage.total_tokens, answer.usage.total_tokens)

    def test_the_clients_own_stream_helper(self):
        whole = self.chat().choices[0].message.content
        # It refuses answers that were cut at max_tokens, so this one is to end by itself.
        with self.client.chat.completions.stream(
                model="tales", max_tokens=16, temperature=0, stop=[whole[8:12]],
                messages=[{"role": "user", "content": "Tell me a tale"}]) as stream:
            text = "".join(event.delta for event in stream if event.type == "content.delta")
            final = stream.get_final_completion()
        self.assertEqual(final.choices[0].message.content, text)
        self.assertEqual(text, whole[:whole.find(whole[8:12])])

    def test_stop_seed_and_bias(self):
        whole = self.complete().choices[0].text
        stop = whole[6:9]
        self.assertEqual(self.complete(stop=[stop]).choices[0].text, whole[:whole.find(stop)])
        drawn = [self.complete(temperature=1, seed=3).choices[0].text for _ in range(2)]
        self.assertEqual(*drawn)
        ended = self.complete(logit_bias={"1": 100})
        self.assertEqual(ended.choices[0].finish_reason, "stop")

    def test_logprobs(self):
        entries = self.chat(logprobs=True, top_logprobs=2).choices[0].logprobs.content
        self.assertEqual(len(entries), 16)
        self.assertEqual(entries[0].top_logprobs[0].token, entries[0].token)
        logprobs = self.complete(logprobs=2).choices[0].logprobs
        self.assertEqual(len(logprobs.tokens), len(logprobs.token_logprobs))
        self.assertEqual(logprobs.top_logprobs[0][logprobs.tokens[0]], logprobs.token_logprobs[0])

    def test_structured_output(self):
        schema = {"type": "object", "additionalProperties": False, "required": ["name", "age"],
                  "properties": {"name": {"type": "string", "maxLength": 12},
                                 "age": {"type": "integer", "minimum": 0, "maximum": 99}}}
        answer = self.chat(max_tokens=100, response_format={
            "type": "json_schema",
            "json_schema": {"name": "person", "strict": True, "schema": schema}})
        person = json.loads(answer.choices[0].message.content)
        self.assertEqual(list(person), ["name", "age"])
        self.assertIn(person["age"], range(100))
        self.assertEqual(answer.choices[0].finish_reason, "stop")
        text = self.complete(max_tokens=60, extra_body={"regex": "[a-z]{3,6}!"}).choices[0].text
        self.assertRegex(text, "^[a-z]{3,6}!$")

    def test_the_clients_own_parse_helper(self):
        class Place(pydantic.BaseModel):
            city: Literal["Oslo", "Rome"]
            visits: Annotated[int, pydantic.Field(ge=0, le=9)]

        answer = self.client.chat.completions.parse(
            model="tales", temperature=0, max_tokens=100, response_format=Place,
            messages=[{"role": "user", "content": "Where to?"}])
        self.assertIn(answer.choices[0].message.parsed.city, ("Oslo", "Rome"))

    def test_extra_fields(self):
        answer = self.complete(extra_body={"return_meta_info": True, "ignore_eos": True})
        self.assertGreaterEqual(answer.choices[0].meta_info["spec_accept_length"], 1.0)

    def test_errors(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.complete(max_tokens=100000)
        self.assertEqual(caught.exception.code, "context_length_exceeded")
        self.assertEqual(caught.exception.type, "invalid_request_error")
        self.assertIn("This model's maximum context length is", str(caught.exception))
        with self.assertRaises(openai.BadRequestError) as caught:
            self.complete(temperature=3)
        self.assertEqual(caught.exception.param, "temperature")
        with self.assertRaises(openai.NotFoundError):
            self.complete(model="other")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(response_format={"type": "json_schema",
                                       "json_schema": {"name": "x", "schema": {"not": {}}}})
        self.assertEqual(caught.exception.param, "response_format")

    def test_leaving_a_stream_frees_its_pages(self):
        stream = self.complete(stream=True, max_tokens=900, extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
        for _ in range(100):
            with urllib.request.urlopen(self.server.url + "/v1/loads") as answer:
                load = json.load(answer)["loads"][0]
            if load["num_running_reqs"] == 0 and load["num_used_tokens"] == 0:
                return
        self.fail(f"still running: {load}")


class OtherServers(unittest.TestCase):
    def refused(self, *flags):
        """The exit status and the one line of a server that cannot start."""
        result = subprocess.run([FORESAIL, "serve", "--quiet", *flags], capture_output=True,
                                text=True, timeout=60)
        self.assertEqual(result.stdout, "")
        self.assertEqual(result.stderr.count("error: "), 1, result.stderr)
        return result.returncode, result.stderr

    def test_exit_statuses(self):
        server = Server()
        port = server.url.rsplit(":", 1)[1]
        status, line = self.refused(MODEL, "--port", port)
        self.assertEqual(status, 2)
        self.assertRegex(line, r"; --port \d+ is free\)")
        self.assertEqual(server.stop(), 0)
        self.assertEqual(self.refused("/nonexistent", "--port", "0")[0], 3)
        self.assertEqual(self.refused(MODEL, "--port", "0", "--api-key", "a b")[0], 2)
        self.assertEqual(self.refused(MODEL, "--port", "0", "--log-format", "xml")[0], 2)

    def test_sigterm_lets_a_stream_finish_and_a_second_one_cuts_it(self):
        for signals in (1, 2):
            server = Server()
            stream = server.client().completions.create(
                model="tales", prompt=PROMPT, max_tokens=200, temperature=0, stream=True,
                extra_body={"ignore_eos": True, "return_token_ids": True})
            chunks = iter(stream)
            tokens = len(next(chunks).choices[0].token_ids)
            for _ in range(signals):
                server.term()
                time.sleep(0.05)
            try:
                for chunk in chunks:
                    tokens += len(chunk.choices[0].token_ids)
                self.assertEqual(tokens, 200)
            except openai.APIError as error:
                self.assertEqual(signals, 2)
                self.assertIn("shutting down", str(error))
            server.process.communicate(timeout=60)
            self.assertEqual(server.process.returncode, 0)

    def test_tools(self):
        server = Server("--tool-call-parser", "kimi_k2")
        client = server.client()
        tools = [{"type": "function", "function": {
            "name": "get_weather", "parameters": {
                "type": "object", "required": ["city"], "additionalProperties": False,
                "properties": {"city": {"enum": ["Oslo", "Rome"]}}}}}]
        fields = {"model": "tales", "temperature": 0, "max_tokens": 300, "tools": tools,
                  "messages": [{"role": "user", "content": "The weather?"}],
                  "tool_choice": "required", "parallel_tool_calls": False}
        answer = client.chat.completions.create(**fields).choices[0]
        call = answer.message.tool_calls[0]
        self.assertEqual(answer.finish_reason, "tool_calls")
        self.assertIsNone(answer.message.content)
        self.assertEqual((call.id, call.function.name), ("functions.get_weather:0", "get_weather"))
        self.assertIn(json.loads(call.function.arguments)["city"], ("Oslo", "Rome"))
        with client.chat.completions.stream(**fields) as stream:
            for _ in stream:
                pass
            streamed = stream.get_final_completion().choices[0]
        self.assertEqual(streamed.message.tool_calls[0].function.arguments,
                         call.function.arguments)
        self.assertEqual(streamed.finish_reason, "tool_calls")
        # The answer goes back with the tool's result, and the next call counts on.
        fields["messages"] += [
            {"role": "assistant", "content": "", "tool_calls": [call.model_dump()]},
            {"role": "tool", "tool_call_id": call.id, "content": "Rain"}]
        again = client.chat.completions.create(**fields).choices[0].message.tool_calls[0]
        self.assertEqual(again.id, "functions.get_weather:1")
        self.assertEqual(server.stop(), 0)

    def test_keys(self):
        server = Server("--api-key", "alpha")
        with self.assertRaises(openai.AuthenticationError) as caught:
            server.client("beta").models.list()
        self.assertEqual(caught.exception.code, "invalid_api_key")
        self.assertTrue(list(server.client("alpha").models.list()))
        self.assertEqual(server.stop(), 0)

    def test_a_full_queue_is_retried_until_it_succeeds(self):
        server = Server("--max-running-requests", "1", "--max-queued-requests", "0")
        busy = server.client().completions.create(
            model="tales", prompt=PROMPT, max_tokens=400, stream=True,
            extra_body={"ignore_eos": True})
        events = iter(busy)
        next(events)
        with self.assertRaises(openai.InternalServerError) as caught:
            server.client().completions.create(model="tales", prompt=PROMPT, max_tokens=1)
        self.assertEqual(caught.exception.status_code, 503)
        self.assertEqual(caught.exception.code, "server_busy")
        answer = server.client(retries=20).completions.create(
            model="tales", prompt=PROMPT, max_tokens=1)
        self.assertEqual(answer.usage.completion_tokens, 1)
        for _ in events:
            pass
        self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
