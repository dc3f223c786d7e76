"""Serves a program of `bnuq export`: python serve.py predictor.pt2 8000 answers a POST of inputs, as nested lists."""

import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

import torch

program = torch.export.load(sys.argv[1]).module()


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        try:
            inputs = torch.tensor(json.loads(self.rfile.read(int(self.headers["Content-Length"]))), dtype=torch.float32)
            answer = json.dumps({name: each.tolist() for name, each in program(inputs).items()})
        except Exception as error:
            self.send_error(400, str(error).partition("\n")[0])
            return
        self.send_response(200), self.end_headers()
        self.wfile.write(answer.encode())


HTTPServer(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()
