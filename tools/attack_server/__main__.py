"""Attacks a server in many ways, and prints how fast `/health` answered others meanwhile.

    python -m tools.attack_server [--only PART ...] [--seconds 5] [-- ARGUMENTS OF quire serve]

Run it from the repository's root, on a machine that does nothing else: client, prober and server
share the processor. "max ms" is the longest answer, "server" the longest until a reply arrived,
and "own ms" the longest without waits for a processor (see `probe`).
"MiB" is the memory of the server and its children before an attack, "after" that a few seconds
after it, both without the KV cache: "KV" is how much of its fixed size was ever written to. Before
the first attack each server has one request of each kind, as some of its parts are loaded by the
first request that needs them.

Then come the attacks on engines within a program (`in_process`): minutes each, with pytest's words.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import tempfile
from pathlib import Path

from tools.attack_server import secrets
from tools.attack_server.attacks import HOSTILE_TEMPLATE, PLAIN, TEMPLATE, TLS, Attack
from tools.attack_server.counters import COUNTERS
from tools.attack_server.floods import FLOODS, TLS_FLOODS
from tools.attack_server.in_process import IN_PROCESS, attack_in_process
from tools.attack_server.more_attacks import KEYED, MORE
from tools.attack_server.numbers import NUMBERS
from tools.attack_server.probe import Probe
from tools.attack_server.secrets import PLANTED_SECRETS
from tools.attack_server.server import Server
from tools.attack_server.token_attacks import TOKENS
from tools.attack_server.warm_up import warm_up

_DEMO = Path(__file__).parents[2] / "src" / "quire" / "demo_model"
_FEW_CONNECTIONS = ["--max-connections", "200", "--reserved-connections", "50"]
"""So that a flood need not be large: each TLS handshake takes milliseconds, of the client too."""
_ROW = "{:36} {:>7} {:>7} {:>7} {:>7} {:>7} {:>6}  {:16} {:>5} {:>5} {:>5}  {}"

_TITLES = (
    *("attack", "p50 ms", "p99 ms", "max ms", "server", "own ms", "probes", "/health"),
    *("MiB", "after", "KV", "its own replies"),
)


def main() -> None:
    """Parses the arguments and runs the attacks, each kind against a server of its own."""
    parser = argparse.ArgumentParser(description="/health during attacks", prog="attack_server")
    parser.add_argument("--only", nargs="+", default=[""], help="parts of names of attacks")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each attack")
    parser.add_argument("serve", nargs="*", help="further arguments of quire serve")
    args = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    print(_ROW.format(*_TITLES), flush=True)
    with tempfile.TemporaryDirectory() as directory:
        for attacks, options in (
            (PLAIN, []),
            (MORE, []),
            (TOKENS, []),
            (NUMBERS, []),
            (COUNTERS, []),
            (KEYED, ["--api-key", "secret"]),
            (FLOODS, []),
            (TLS, _certificate(Path(directory))),
            (TLS_FLOODS, [*_certificate(Path(directory)), *_FEW_CONNECTIONS]),
            (PLANTED_SECRETS, secrets.options()),
            (TEMPLATE, _template(Path(directory))),
        ):
            chosen = {name: attacks[name] for name in attacks if _is_chosen(name, args.only)}
            if chosen:
                arguments = ["--model", str(_DEMO), "--disable-access-log"]
                arguments += ["--kv-store-path", f"{directory}/kv", *options, *args.serve]
                server = Server(arguments, is_tls=attacks in (TLS, TLS_FLOODS))
                try:
                    if attacks is not PLANTED_SECRETS:  # the others need no key, or none is right
                        warm_up(server.port)
                    for name, attack in chosen.items():
                        _run(name, attack, server, args.seconds)
                finally:
                    server.stop()
                shown = sum(any(one in line for one in secrets.SECRETS) for line in server.log)
                if shown:
                    print(f"{shown} lines of the log show a secret", flush=True)
    for name in IN_PROCESS:
        if _is_chosen(name, args.only):
            print(f"{name:36} {attack_in_process(name)}", flush=True)


def _is_chosen(name: str, parts: list[str]) -> bool:
    return any(part in name for part in parts)


def _run(name: str, attack: Attack, server: Server, seconds: float) -> None:
    before = server.own_mib
    with Probe(server.port, server.pid, is_tls=server.is_tls) as probe:
        found = attack(server.port, seconds)
    answers, after = probe.answers, server.settled_mib(before)
    print(
        _ROW.format(
            name,
            *(f"{answers.ms(percent):.1f}" for percent in (50, 99, 100)),
            f"{answers.server_ms:.1f}",
            f"{answers.own_ms:.1f}",
            len(answers.seconds),
            _text(answers.statuses),
            f"{before:.0f}",
            f"{after:.0f}",
            f"{server.kv_mib:.0f}",
            _text(found),
        ),
        flush=True,
    )


def _text(counts: dict[str, int]) -> str:
    return ", ".join(f"{name}: {count}" for name, count in sorted(counts.items()))


def _certificate(directory: Path) -> list[str]:
    both, certificate = directory / "both.pem", directory / "only.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-keyout", both, "-out", certificate],
        check=True,
        capture_output=True,
    )  # fmt: skip
    both.write_text(both.read_text() + certificate.read_text())
    return ["--ssl-keyfile", str(both), "--ssl-certfile", str(both)]


def _template(directory: Path) -> list[str]:
    path = directory / "hostile.jinja"
    path.write_text(HOSTILE_TEMPLATE)
    return ["--chat-template", str(path), "--template-timeout", "1"]


if __name__ == "__main__":
    main()
