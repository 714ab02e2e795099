"""`python -m quire.vllm`: everything but the name `vllm` is as with plain Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import quire
from quire.config.checkpoint.model_files import DEMO_MODEL_PATH
from quire.vllm.own.commands import command_line
from quire.vllm.surface import VLLM_VERSION

Run = Callable[..., str]
QUIRE = Path(quire.__file__).parents[1]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """`python -m quire.vllm words...` in an empty directory; what it prints."""

    def run_words(
        *words: str, python: tuple[str, ...] = (), code: int = 0, path: Path | None = None
    ) -> str:
        paths = [str(place) for place in (path, QUIRE) if place]
        done = subprocess.run(
            [sys.executable, *python, "-m", "quire.vllm", *words],
            capture_output=True, text=True, cwd=tmp_path, check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        return done.stdout if code == 0 else done.stderr

    return run_words


LOOK = """
import json, sys
main = sys.modules["__main__"]
print(json.dumps({
    "argv": sys.argv, "path": sys.path[0], "name": __name__, "flags": list(sys.flags),
    "options": sys._xoptions, "warnings": sys.warnoptions,
    "file": getattr(main, "__file__", None), "module": main.__spec__ and main.__spec__.name,
}))
"""
WHOSE = "import vllm; print(vllm.LLM.__module__)"


@pytest.mark.parametrize(
    ("python", "words"),
    [
        ((), ("look.py",)),
        ((), ("look.py", "serve", "--option", "a word", "-m")),
        ((), ("folder/../look.py", "x")),
        ((), ("-c", LOOK, "-c", "y")),
        ((), ("-m", "look", "--flag")),
        ((), ("-O", "look.py")),
        (("-u", "-W", "ignore", "-X", "dev=0"), ("look.py", "-u")),
        (("-B", "-X", "utf8"), ("-m", "look")),
    ],
)
def test_a_program_sees_what_plain_python_shows_it(
    run: Run, tmp_path: Path, python: tuple[str, ...], words: tuple[str, ...]
) -> None:
    (tmp_path / "look.py").write_text(LOOK)
    (tmp_path / "folder").mkdir()
    plain = subprocess.run(
        [sys.executable, *python, *words], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert json.loads(run(*words, python=python)) == json.loads(plain.stdout)


def test_interpreter_options_may_stand_in_one_word() -> None:
    code = "import sys; print(sys.flags.dont_write_bytecode)"
    out = subprocess.run(
        [sys.executable, "-Bumquire.vllm", "-c", code],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert out.stdout == "1\n"


def test_vllm_is_quire_in_a_program_and_in_its_children(run: Run, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import multiprocessing, subprocess, sys\n"
        "from vllm import SamplingParams\n"
        "from vllm.sampling_params import RequestOutputKind\n"
        "def where(params):\n"
        "    import vllm\n"
        "    return [vllm.LLM.__module__, params.max_tokens, __name__]\n"
        "if __name__ == '__main__':\n"
        "    for method in ('spawn', 'forkserver', 'fork'):\n"
        "        with multiprocessing.get_context(method).Pool(1) as pool:\n"
        "            print(*pool.apply(where, (SamplingParams(max_tokens=7),)))\n"
        "    sys.stdout.flush()\n"
        f"    subprocess.run([sys.executable, '-c', {WHOSE!r}], check=True)\n"
    )
    assert run("script.py").splitlines() == [
        "quire.llm 7 __mp_main__", "quire.llm 7 __mp_main__", "quire.llm 7 __main__", "quire.llm",
    ]  # fmt: skip


def test_a_program_finds_the_command_vllm(run: Run, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import os, subprocess, sys\n"
        "os.environ['PATH'] = os.environ['PATH'].split(os.pathsep)[0] + ':/usr/bin:/bin'\n"
        "out = subprocess.run(['vllm', '--version'], capture_output=True, text=True, check=True)\n"
        "print(out.stdout.strip())\n"
        "print(os.environ['QUIRE_PYTHON'] == sys.executable)\n"
    )
    assert run("script.py").splitlines() == [VLLM_VERSION, "True"]


def test_an_installed_vllm_is_not_used_and_told(run: Run, tmp_path: Path) -> None:
    package = tmp_path / "site" / "vllm"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('this is vLLM')")
    assert run("-c", WHOSE, path=package.parent) == "quire.llm\n"
    message = run("-c", f"{WHOSE}; raise SystemExit(1)", path=package.parent, code=1)
    assert message == f"quire.vllm: `import vllm` imports Quire, not {package}\n"


def test_a_folder_named_vllm_beside_the_script_is_not_used(run: Run, tmp_path: Path) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text("raise SystemExit('this is vLLM')")
    (tmp_path / "script.py").write_text(
        f"import multiprocessing\n{WHOSE}\n"
        "if __name__ == '__main__':\n"
        "    child = multiprocessing.get_context('spawn').Process(target=print)\n"
        "    child.start(); child.join(); print(child.exitcode)\n"
    )
    assert run("script.py").split() == ["quire.llm", "quire.llm", "0"]


def test_quire_may_be_found_in_the_current_directory() -> None:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    out = subprocess.run(
        [sys.executable, "-m", "quire.vllm", "-c", WHOSE],
        cwd=QUIRE, env=env, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert out.stdout == "quire.llm\n"


def test_importing_quire_leaves_the_name_alone() -> None:
    code = (
        "import sys, quire; quire.LLM; assert not {'vllm', 'quire.vllm'} & set(sys.modules);"
        "import quire.vllm; import vllm; print(vllm.LLM is quire.LLM, 'numpy' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split()[0] == "True"


def test_importing_the_names_imports_no_engine() -> None:
    code = (
        "import sys, quire.vllm; import vllm.sampling_params, vllm.engine.arg_utils;"
        "print(sorted({'numpy', 'tokenizers', 'argparse', 'email'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout == "[]\n"


def test_another_sitecustomize_runs_too(run: Run, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('mine')")
    assert run("-c", WHOSE, path=tmp_path).splitlines() == ["mine", "mine", "quire.llm"]


def test_the_exit_code_is_the_programs(run: Run) -> None:
    run("-c", "raise SystemExit(3)", code=3)


def test_modules_of_vllm_that_are_programs(run: Run) -> None:
    assert run("-m", "vllm.entrypoints.cli.main", "--version") == f"{VLLM_VERSION}\n"
    assert "usage: quire serve" in run("-m", "vllm.entrypoints.openai.api_server", "--help")
    message = run("-m", "vllm.entrypoints.openai.api_server", "--no-such-option", code=2)
    assert "unknown option --no-such-option" in message


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ((), "usage: python -m quire.vllm SCRIPT"),
        (("--help",), "usage: python -m quire.vllm SCRIPT"),
        (("--version",), VLLM_VERSION),
        (("serve", "--help"), "usage: quire serve"),
        (("bench", "latency", "--help"), "usage: quire bench latency"),
        (("collect-env", "--help"), "usage: quire collect-env"),
    ],
)
def test_vllms_commands(run: Run, words: tuple[str, ...], shown: str) -> None:
    assert shown in run(*words)


def test_a_word_that_is_neither_file_nor_command(run: Run) -> None:
    assert "'serv' must be a file or a command; did you mean serve?" in run("serv", code=2)


@pytest.mark.parametrize("option", ["-E", "-S", "-I"])
def test_an_option_that_hides_quire_is_refused(
    option: str, capfd: pytest.CaptureFixture[str]
) -> None:
    paths = [str(path) for path in sys.path]
    code = (
        f"import sys; sys.path[:] = {paths!r}; from quire.vllm.own.commands import main;"
        "sys.exit(main(['-c', 'pass']))"
    )
    done = subprocess.run([sys.executable, option, "-c", code], check=False)
    assert done.returncode == 2
    assert "Python's options -E, -I and -S are not supported" in capfd.readouterr().err


def test_the_command_line_as_a_function(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line(["--version"]) == 0
    assert capsys.readouterr().out == f"{VLLM_VERSION}\n"
    assert command_line(["no-such-command"]) == 2


def test_a_script_of_vllms_tutorial(run: Run, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "from vllm import LLM, SamplingParams\n"
        "from vllm.outputs import RequestOutput\n"
        "if __name__ == '__main__':\n"
        "    llm = LLM(model='QUIRE_DEMO', enforce_eager=True, tensor_parallel_size=1)\n"
        "    asked = [{'role': 'user', 'content': 'What is 17 + 25?'}]\n"
        "    outputs = llm.chat(asked, SamplingParams(temperature=0, max_tokens=30))\n"
        "    assert isinstance(outputs[0], RequestOutput)\n"
        "    print(outputs[0].outputs[0].text)\n".replace("QUIRE_DEMO", str(DEMO_MODEL_PATH))
    )
    assert "42" in run("script.py")


def test_a_script_that_starts_a_server(run: Run, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import subprocess, sys, time, urllib.request\n"
        "from vllm.utils.network_utils import get_open_port\n"
        "if __name__ == '__main__':\n"
        "    port = get_open_port()\n"
        "    words = ['--model', sys.argv[1], '--port', str(port)]\n"
        "    module = 'vllm.entrypoints.openai.api_server'\n"
        "    server = subprocess.Popen([sys.executable, '-m', module, *words])\n"
        "    for _ in range(600):\n"
        "        try:\n"
        "            url = f'http://127.0.0.1:{port}/health'\n"
        "            print(urllib.request.urlopen(url).status)\n"
        "            break\n"
        "        except OSError:\n"
        "            time.sleep(0.1)\n"
        "    server.terminate()\n"
        "    print(server.wait())\n"
    )
    assert run("script.py", str(DEMO_MODEL_PATH)).split() == ["200", "0"]
