"""`ServerArgs`: the options of a server, a frozen record with vLLM's flag names.

The command line makes its flags from these fields and their docstrings; `serve` reads them.
Everything about the model and the engine is in `EngineArgs`, not here.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Any, Literal, get_args

from quire.config.declaration import argument
from quire.config.field_types import check_fields
from quire.config.model_lookup.settings import problem_of_messages
from quire.errors import ConfigError, quoted
from quire.redacted_settings import shown
from quire.units import KiB, MiB

EngineMode = Literal["auto", "thread", "process"]
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""Reasoning efforts that a request can ask for."""
ServerLogLevel = Literal["critical", "error", "warning", "info", "debug", "trace"]

_LOOPBACK = frozenset({"localhost"})
_ORIGIN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[a-z0-9._~:\[\]-]+")
_LONGEST_S = 1e9
"""Thirty years: what an event loop can still wait for."""


def _positive(value: float, default: float | None) -> str | None:
    if not value > 0:
        return f"must be positive, got {value}; the default is {default}"
    if isinstance(value, float) and value > _LONGEST_S:
        return f"must be at most {_LONGEST_S:g} seconds, got {value}"
    return None


def _not_negative(value: int, default: int | None) -> str | None:
    del default
    if value >= 0:
        return None
    return f"must be a non-negative integer, got {value}; leave it out for the default"


def _seconds_to_end(value: float, default: float) -> str | None:
    if 0 <= value <= _LONGEST_S:
        return None
    return f"must be from 0 to {_LONGEST_S:g} seconds, got {value}; try {default:g}"


def _header_text(value: str | tuple[str, ...], default: object) -> str | None:
    """The check of what goes into headers of replies, or is compared with those of requests."""
    del default
    texts = (value,) if isinstance(value, str) else value
    wrong = next((text for text in texts if not text.isascii() or not text.isprintable()), None)
    return None if wrong is None else f"must be printable ASCII, got {quoted(wrong)}"


def _origins(value: tuple[str, ...], default: object) -> str | None:
    """The check of origins, which are compared with what browsers send (RFC 6454, section 7)."""
    del default
    wrong = next((text for text in value if not _ORIGIN.fullmatch(text)), None)
    if wrong is None:
        return None
    return (
        f"must be *, null, or scheme://host in lower case with or without :port, such as "
        f"http://localhost:3000, got {quoted(wrong)}"
    )


def _not_empty(value: str, default: None) -> str | None:
    del default
    return None if value else "must not be empty; leave it out, or name a file"


def _first_messages(value: list[str], default: None) -> str | None:
    del default
    return problem_of_messages(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerArgs:
    """Address, access, and all limits of requests."""

    # --- where
    host: str = argument("127.0.0.1", is_common=True, check=_header_text)
    """Address to listen on. Anything but loopback needs an API key or --allow-no-api-key."""
    port: int = argument(8000, is_common=True)
    """TCP port; 0 lets the system choose one, which the log names."""
    uds: str | None = argument(None, check=_not_empty)
    """Path of a unix socket to listen on instead of host and port."""
    root_path: str = argument("", check=_header_text)
    """Path prefix under which a reverse proxy offers this server: requests are answered with the
    prefix and, as a proxy that strips it forwards them, without."""

    models: str | None = argument(None, is_common=True)
    """YAML or JSON file that names several models to serve, with options of each
    (docs/several_models.md)."""
    models_dir: tuple[str, ...] = argument((), is_common=True, is_repeatable=True)
    """Folder whose models are all served, each loaded when it is asked for; also Ollama's or LM
    Studio's folder. May be given several times (docs/several_models.md)."""
    model_ttl: float | None = argument(None, check=_positive)
    """Seconds without a request after which a model of several is unloaded (also `10m`, `1h`); by
    default it stays until another one needs its memory."""
    model_memory_bytes: int | None = argument(None, check=_positive)
    """Memory for all loaded models together; by default --gpu-memory-utilization of what is
    available at the start."""
    model_load_timeout: float = argument(600.0, check=_positive)
    """Longest time in seconds that a request waits for its model, of several, to be loaded (503).
    """
    max_waiting_loads: int = argument(512, check=_positive)
    """Requests that wait for a model, of several, to be loaded; more are answered 503."""
    allow_model_changes: bool = False
    """Let callers pull models from the hub, give them further names and delete what they pulled
    (Ollama's /api/pull, /api/copy and /api/delete)."""
    allow_any_model_name: bool = False
    """Let the one model answer requests that name an unknown one, on all routes; the routes of
    llama-server and of Hugging Face's servers always do. A header of the reply says so."""
    headless: bool = False
    """Serve no HTTP: give the cores of this machine to the engine at --master-addr, as its
    --node-rank."""

    # --- who
    api_key: tuple[str, ...] = argument((), is_common=True, is_repeatable=True)
    """Keys that callers may present as `Authorization: Bearer KEY`. Also read from the
    environment variable QUIRE_API_KEY (or VLLM_API_KEY)."""
    operator_api_key: tuple[str, ...] = argument((), is_repeatable=True)
    """Keys that may change and read what the holders of several keys share: adapters, models,
    /metrics and more (SECURITY.md). Also read from QUIRE_OPERATOR_API_KEY; by default the first
    key."""
    api_key_file: str | None = argument(None, check=_not_empty)
    """File with one key per line; blank lines and lines starting with # are skipped."""
    allow_no_api_key: bool = False
    """Accept listening beyond loopback without any API key."""
    allowed_hosts: tuple[str, ...] = argument((), check=_header_text)
    """Further names (of a reverse proxy, say) by which a server without API keys may be called, `*`
    for all. It answers to localhost, addresses and the machine's name, and beyond loopback to
    names without a dot: no web page of another site can use it."""
    ssl_keyfile: str | None = argument(None, check=_not_empty)
    """Private key of the TLS certificate (PEM)."""
    ssl_certfile: str | None = argument(None, check=_not_empty)
    """TLS certificate chain (PEM); switches HTTPS on."""
    ssl_ca_certs: str | None = argument(None, check=_not_empty)
    """Certificates (PEM) that client certificates must descend from; switches their check on."""
    ssl_cert_reqs: Literal["0", "1", "2"] | None = None
    """Client certificates: 0 none, 1 checked if there is one, 2 required; by default 2 with
    --ssl-ca-certs."""
    ssl_ciphers: str | None = None
    """Cipher suites up to TLS 1.2, as OpenSSL writes them."""
    enable_ssl_refresh: bool = False
    """Read the TLS files again when they change, for new connections."""
    allowed_origins: tuple[str, ...] = argument((), check=_origins)
    """Browser origins that may call across sites (CORS); none by default, `*` for all."""
    allowed_methods: tuple[str, ...] = argument(("*",), check=_header_text)
    """Methods allowed across sites, once --allowed-origins is set."""
    allowed_headers: tuple[str, ...] = argument(("*",), check=_header_text)
    """Request headers allowed across sites, once --allowed-origins is set."""
    allow_credentials: bool = False
    """Let browsers send cookies across sites, once --allowed-origins is set."""
    lora_modules: tuple[str, ...] = argument((), is_repeatable=True)
    """Adapters that callers can name as a model: `NAME=FOLDER`, or JSON with name and path. Needs
    --enable-lora."""
    lora_folders: tuple[str, ...] = ()
    """Folders from which /v1/load_lora_adapter may load adapters; by default all. The route exists
    with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 only."""
    prompt_adapters: tuple[str, ...] = argument((), is_repeatable=True)
    """Prompt adapters that callers can name as a model: `NAME=FOLDER`. Needs
    --enable-prompt-adapter."""
    middleware: tuple[str, ...] = argument((), is_repeatable=True)
    """Own ASGI middleware around access control and routes, by import path: classes, or functions
    of request and next handler. The first is the outermost."""

    # --- what
    engine_mode: EngineMode = "auto"
    """Place of the engine loop: a thread of this process, or its own process. `auto` is a thread up
    to 8 cores."""
    max_engine_restarts: int | None = argument(None, check=_not_negative)
    """Maximum number of times that an engine that has died is started again within ten minutes,
    while the requests of other engines go on; then the server exits. By default 3 with several
    ranks or engines, and 0 with one, which ends the server at once. An engine that is a thread is
    not started again."""
    ui: bool = True
    """Serve the chat page and live view at `/` (--no-ui removes it)."""
    transcription_model: str | None = argument(None, check=_not_empty)
    """Model of Whisper's kind that writes down the sounds in chats with models that hear none: one
    of several models, or one more, which is loaded when it is needed. By default such chats are
    refused."""
    mcp_config: str | None = argument(None, check=_not_empty)
    """JSON file with `mcpServers`: tool servers (Model Context Protocol, by `url`) whose tools the
    chat page offers to the model. Browsers call them; this server does not. Those with `command` or
    `headers` are for the terminal."""
    allow_own_mcp_servers: bool = False
    """Let users of the chat page add tool servers of their own, in their browsers. The page may
    then connect to any address."""
    disable_fastapi_docs: bool = False
    """Remove /docs and /openapi.json."""
    enable_tokenizer_info_endpoint: bool = False
    """Serve the tokenizer's configuration, chat template included, at /tokenizer_info."""
    enable_dev_routes: bool = False
    """Serve the routes that control the engine (/sleep, /pause, /server_info ...), of several keys
    to the operator's. Also switched on by the environment variable VLLM_SERVER_DEV_MODE=1."""
    enable_per_request_metrics: bool = False
    """Put timings into every reply (otherwise only where the request says
    `include_metrics: true`)."""
    response_role: str = "assistant"
    """Role of the replies of /v1/chat/completions."""
    system_prompt: str = ""
    """System message of conversations that have none."""
    first_messages: list[str] | None = argument(None, check=_first_messages)
    """Messages with which each conversation begins, before those of a request: texts such as
    "user Hello." and "assistant Hi!"."""
    chat_template_content_format: Literal["auto", "string", "openai"] = "auto"
    """Form of a message's content for templates: a text, a list of parts, or the form that they
    read."""
    default_chat_template_kwargs: dict[str, Any] = argument(factory=dict)
    """Variables of the chat template that requests do not set themselves."""
    reasoning_effort_map: dict[str, str] = argument(factory=dict)
    """Efforts that the chat template gets in place of those of requests, for a template that knows
    others: {"medium": "low", "xhigh": "max"}. An effort that is not named stays."""
    tool_call_parser: str | None = argument(None, is_common=True)
    """Format in which the model writes calls of tools: a name of vLLM's, such as `hermes`, or
    `mistral_list` for the Mistral models that write a list of calls; `hf`: the format of the
    checkpoint's response_template; `none`: calls stay text. By default it is found from the
    checkpoint (quire explain MODEL prints it)."""
    tool_parser_plugin: str = ""
    """File of Python with parsers of calls, subclasses of vLLM's `ToolParser`, of which
    --tool-call-parser names one. Its code runs in the server."""
    reasoning_parser_plugin: str = ""
    """The same with subclasses of `ReasoningParser`, for --reasoning-parser."""
    enable_auto_tool_choice: bool = False
    """Accepted for compatibility: calls are looked for wherever it is known how the model writes
    them."""
    tool_strict_level: Literal["auto", "function", "parameter"] = "auto"
    """Least that a grammar makes sure of in requests with tools: `auto` what the request says,
    `function` the form of calls and the tools' names, `parameter` the arguments too."""
    anthropic_disabled_thinking_effort: Literal[
        "auto", "none", "low", "medium", "high", "xhigh", "max"
    ] = "auto"
    """The reasoning_effort of requests to `/v1/messages` with thinking disabled. `auto`: `none`, or
    `low` where the chat template refuses `none` or takes it for another effort."""
    exclude_tools_when_tool_choice_none: bool = False
    """Show no tools to the model if a request forbids their use."""
    enable_force_include_usage: bool = False
    """Put the usage into every event of every stream, whether or not the request asks for it."""
    return_tokens_as_token_ids: bool = False
    """Write tokens of log-probabilities as `token_id:ID`, unless the request says otherwise."""
    sse_keep_alive_interval: int = argument(0, check=_not_negative)
    """Seconds without an event after which a stream sends a comment, so that no proxy closes it; 0:
    never. `/v1/messages` sends pings instead, with 0 every 15 seconds."""
    fingerprint_mode: Literal["full", "hash", "custom", "none"] = "full"
    """system_fingerprint of replies: version and a hash of the model (`full` and `hash`), the text
    of --fingerprint-value, or nothing."""
    fingerprint_value: str | None = argument(None, check=_header_text)
    """The system_fingerprint of `--fingerprint-mode custom`."""

    # --- the log
    disable_access_log: bool = argument(False, None, "--disable-uvicorn-access-log")
    """Do not log a line per HTTP request."""
    disable_access_log_for_endpoints: str = ""
    """Paths whose requests are not logged, separated by commas: /metrics,/v1/models."""
    uvicorn_log_level: ServerLogLevel | None = None
    """Least important messages of the HTTP server that are logged; by default as all others."""
    enable_log_outputs: bool = False
    """Log the text of every reply; needs --enable-log-requests."""
    log_error_stack: bool = False
    """Log the stack of every error that a request is answered with, also of the caller's mistakes.
    """
    max_log_len: int | None = argument(None, check=_not_negative)
    """Most characters of a prompt or a reply, and most of their token ids, in the log; all by
    default."""

    # --- life
    shutdown_timeout: float = argument(30.0, check=_seconds_to_end)
    """Seconds that requests in flight get after SIGTERM or Ctrl+C; 0 ends them at once."""
    step_timeout: float = argument(120.0, check=_positive)
    """Longest step in seconds: after it all waiting requests get an error and the server exits. A
    step without any progress ends the server within two seconds, independent of this."""
    request_timeout: float = argument(3600.0, check=_positive)
    """Longest life of one request in seconds; callers may ask for less with the header
    `X-Request-Timeout`."""

    # --- bounds on HTTP itself
    max_connections: int = argument(2048, check=_positive)
    """Open connections; idle ones are closed for new ones, then new ones are answered 503."""
    reserved_connections: int = argument(256, check=_positive)
    """Connections beyond max_connections that are kept for /health, /live and /ready."""
    max_body_bytes: int = argument(16 * MiB, check=_positive)
    """Largest request body (413)."""
    max_pending_body_bytes: int = argument(256 * MiB, check=_positive)
    """All request bodies together that are still arriving (503)."""
    max_form_bytes: int = argument(512 * MiB, check=_positive)
    """Largest form with a file, such as audio (413). More than 1 MiB of it is in a temporary file;
    all such files together have at most four times as many bytes (503)."""
    max_header_bytes: int = argument(
        32 * KiB, None, "--h11-max-incomplete-event-size", check=_positive
    )
    """Request line, headers, trailers and chunk extensions of a request, together (431)."""
    max_url_bytes: int = argument(8 * KiB, check=_positive)
    """Path and query (414)."""
    header_timeout: float = argument(10.0, check=_positive)
    """Seconds for a request's headers to arrive (408)."""
    body_timeout: float = argument(30.0, check=_positive)
    """Seconds for a request's body to arrive (408)."""
    keep_alive_timeout: float = argument(5.0, check=_positive)
    """Seconds that an idle connection is kept."""
    linger_timeout: float = argument(2.0, check=_positive)
    """Seconds (and max_body_bytes) that a client may send on after the last reply of a
    connection, so that it can read the reply."""
    slow_reader_timeout: float = argument(30.0, check=_positive)
    """Seconds that a client may leave a full send buffer unread before it is cut off."""

    # --- bounds on one request
    max_prompts: int = argument(1024, check=_positive)
    """Prompts in one completion request, each counted `n` times."""
    max_n: int = argument(128, check=_positive)
    """Largest `n`. Prompts x n is bounded by max_prompts."""
    max_stop_strings: int = argument(16, check=_positive)
    """Stop strings in one request."""
    max_stop_string_chars: int = argument(1024, check=_positive)
    """Length of one stop string."""
    max_stop_token_ids: int = argument(1024, check=_positive)
    """Stop token ids in one request."""
    max_messages: int = argument(4096, check=_positive)
    """Messages in one chat request."""
    template_timeout: float = argument(5.0, check=_positive)
    """Seconds of processor time that the chat template may take for one request (400). A request
    waits for a free process at most six times as long (503)."""
    max_waiting_chats: int = argument(1024, check=_positive)
    """Chat requests that wait for the chat template; more are answered 503."""
    max_request_id_chars: int = argument(128, check=_positive)
    """Length of an `X-Request-Id`; a longer one is refused."""
    max_json_values: int = argument(131072, check=_positive)
    """Values in one request's JSON body, without the token ids of its prompts."""
    max_field_bytes: int = argument(1 * MiB, check=_positive)
    """Largest field of a request's JSON body other than the prompt."""
    max_tokenize_bytes: int | None = argument(None, check=_positive)
    """Longest text that is tokenized: a prompt, or all inputs of the chat template. By default 8
    bytes for each token of max_model_len, and at least 1 MiB."""
    max_reply_values: int | None = argument(None, check=_positive)
    """Log-probabilities, echoed tokens and returned prompt ids in one reply, all choices together;
    or numbers of the vectors of all tokens. By default what one choice of max_model_len tokens with
    max_logprobs has, and at least 1048576; of vectors, those of such a text, and at least 16777216.
    """
    response_store_bytes: int = argument(256 * MiB, check=_not_negative)
    """Memory for the responses of /v1/responses that are stored; the oldest make room, of several
    API keys those of the key with the most. 0: none are stored, so that there is no
    `previous_response_id` and no `background`."""
    max_stored_responses: int = argument(4096, check=_positive)
    """Responses that are stored at once."""
    response_store_time: float = argument(86400.0, check=_positive)
    """Seconds after its last use for which a response is stored."""
    max_large_requests: int = argument(1, check=_positive)
    """Requests of more than 262144 characters, or as many values in the reply, that are tokenized
    or written at once; others wait."""
    max_large_requests_waiting: int = argument(16, check=_positive)
    """Such requests that wait (503)."""

    def __repr__(self) -> str:
        return shown(self)

    def __post_init__(self) -> None:
        check_fields(self)
        self._check_texts()
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port must be between 0 and 65535, got {self.port}; try 8000")
        if (self.ssl_keyfile is None) != (self.ssl_certfile is None):
            raise ConfigError("ssl_keyfile and ssl_certfile belong together: give both or neither")
        if self.ssl_ca_certs is not None and self.ssl_certfile is None:
            raise ConfigError("ssl_ca_certs needs ssl_certfile and ssl_keyfile as well")
        if self.allow_credentials and "*" in self.allowed_origins:
            raise ConfigError(
                "allow_credentials with allowed_origins * would let any site act as the user; "
                "name the origins"
            )
        self._check_tools()
        if self.fingerprint_mode == "custom" and not self.fingerprint_value:
            raise ConfigError("fingerprint_mode=custom needs fingerprint_value, which it shows")
        for path in self.quiet_paths:
            if not path.startswith("/"):
                raise ConfigError(
                    f"disable_access_log_for_endpoints must be paths, got {quoted(path)}; try "
                    "/metrics,/v1/models"
                )
        if self.root_path and not self.root_path.startswith("/"):
            raise ConfigError(
                f"root_path must start with /, got {quoted(self.root_path)}; try /llm"
            )

    def _check_tools(self) -> None:
        if self.tool_call_parser is None or self.tool_parser_plugin:  # checked when it is loaded
            return
        from quire.parsers.detection.names import NONE, FormatChoice

        choice = FormatChoice.of(self.tool_call_parser, None)
        if choice.tools == NONE and self.enable_auto_tool_choice:
            raise ConfigError(
                "enable_auto_tool_choice requires a tool call format, but tool_call_parser is "
                "none; remove one of them"
            )

    def _check_texts(self) -> None:
        """Checks values that go into headers, paths and replies."""
        efforts = get_args(ReasoningEffort)
        for effort, text in self.reasoning_effort_map.items():
            if effort not in efforts or not isinstance(text, str):
                raise ConfigError(
                    f"reasoning_effort_map must give a text for any of {', '.join(efforts)}, got "
                    f'{quoted(effort)}: {quoted(text)}; try {{"xhigh": "high"}}'
                )
        if not self.response_role.isprintable() or not self.response_role:
            raise ConfigError(
                f"response_role must be a printable text, got {quoted(self.response_role)}; try "
                "assistant"
            )

    def template_effort(self, effort: str) -> str:
        """Effort that the chat template gets for the effort of a request."""
        return self.reasoning_effort_map.get(effort, effort)

    @property
    def quiet_paths(self) -> tuple[str, ...]:
        """Paths whose requests are not logged."""
        paths = self.disable_access_log_for_endpoints.split(",")
        return tuple(path.strip() for path in paths if path.strip())

    @property
    def is_loopback(self) -> bool:
        """Whether only users of this machine can reach the server."""
        return self.uds is not None or self.host in _LOOPBACK or _is_loopback_ip(self.host)


def _is_loopback_ip(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
