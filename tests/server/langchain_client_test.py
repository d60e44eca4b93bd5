"""LangChain's client against the real server: langchain_client_test.py FORESAIL MODEL

Run by tests/server/run_openai_client.
"""

import sys
import unittest
from typing import Literal

import pydantic
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAI

from foresail_serve import Server


class Place(pydantic.BaseModel):
    """Where to go."""
    city: Literal["Oslo", "Rome"]


class LangChain(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--threads", "1", "--context-length", "1024",
                            "--tool-call-parser", "kimi_k2", "--speculative-algorithm", "MTP")
        cls.url = cls.server.url + "/v1"

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def chat(self, **fields):
        fields = {"model": "tales", "temperature": 0, "max_tokens": 16, "max_retries": 0,
                  "base_url": self.url, "api_key": "unused"} | fields
        return ChatOpenAI(**fields)

    def test_chat_and_stream(self):
        messages = [SystemMessage("Be brief."), HumanMessage("Tell me a tale")]
        answer = self.chat().invoke(messages)
        self.assertTrue(answer.content)
        self.assertEqual(answer.usage_metadata["output_tokens"], 16)
        self.assertEqual(answer.response_metadata["finish_reason"], "length")
        whole = None
        for chunk in self.chat(stream_usage=True).stream(messages):
            whole = chunk if whole is None else whole + chunk
        self.assertEqual(whole.content, answer.content)
        self.assertEqual(whole.usage_metadata["total_tokens"],
                         answer.usage_metadata["total_tokens"])
        batch = self.chat().batch([messages, messages])
        self.assertEqual([one.content for one in batch], [answer.content] * 2)

    def test_completion(self):
        model = OpenAI(model="tales", temperature=0, max_tokens=8, max_retries=0,
                       base_url=self.url, api_key="unused")
        text = model.invoke("Once upon a time")
        self.assertTrue(text)
        self.assertEqual("".join(model.stream("Once upon a time")), text)

    def test_structured_output(self):
        model = self.chat(max_tokens=60).with_structured_output(Place, method="json_schema")
        self.assertIn(model.invoke("Where to?").city, ("Oslo", "Rome"))

    def test_tools(self):
        model = self.chat(max_tokens=200).bind_tools([Place], tool_choice="Place",
                                                     parallel_tool_calls=False)
        answer = model.invoke("Where to?")
        self.assertEqual(answer.tool_calls[0]["name"], "Place")
        self.assertIn(answer.tool_calls[0]["args"]["city"], ("Oslo", "Rome"))
        whole = None
        for chunk in model.stream("Where to?"):
            whole = chunk if whole is None else whole + chunk
        self.assertEqual(whole.tool_calls, answer.tool_calls)
        follow_up = self.chat().invoke([HumanMessage("Where to?"), answer,
                                        ToolMessage("Rain", tool_call_id=answer.tool_calls[0]["id"])])
        self.assertTrue(follow_up.content)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
