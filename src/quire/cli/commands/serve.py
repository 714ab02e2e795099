"""Serve models over HTTP: the OpenAI API, metrics, and a web page with a chat and a live view."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
from contextlib import suppress

from quire.config.checkpoint.model_files import DEMO_MODEL
from quire.config.command_line.engine_options import (
    add_engine_options,
    add_unsupported,
    engine_args,
)
from quire.config.command_line.options import add_options, read
from quire.config.command_line.parser import Parser
from quire.config.declaration import common_options
from quire.config.engine_args import AsyncEngineArgs
from quire.config.model_lookup.aliases import settings_of, target_of
from quire.config.model_lookup.known import is_near
from quire.config.model_lookup.settings import over_defaults
from quire.config.vllm_names import check_server_options, unsupported
from quire.config.vllm_variables import server_defaults
from quire.errors import ConfigError, QuireError, quoted
from quire.log import get_logger, unblock_stderr
from quire.server.args import ServerArgs

logger = get_logger(__name__)
_SHARED = frozenset(field.name for field in dataclasses.fields(ServerArgs))
"""Server options; if the engine has an option of the same name, the server's applies."""


def configure(parser: Parser) -> None:
    """Declare the options: the server's, the engine's, and vLLM's options without effect."""
    add_options(parser, ServerArgs, title="Frontend")
    parser.add_argument("model_tags", nargs="*", metavar="MODEL", help=_MODELS_HELP)
    add_engine_options(parser, record=AsyncEngineArgs, has_positional=False, skip=_SHARED)
    add_unsupported(parser, unsupported("server_options"))
    common = common_options(AsyncEngineArgs) | common_options(ServerArgs)
    parser.shorten({"Frontend", "ModelConfig"}, {*common, "served_model_name"})


def execute(args: argparse.Namespace) -> int:
    """Serve until a signal arrives; returns the server's exit code."""
    unblock_stderr()
    check_server_options(vars(args))
    server_args = read(ServerArgs, args, defaults=server_defaults())
    several = args.model_tags if len(args.model_tags) > 1 else []
    args.model_tag = args.model_tags[0] if len(args.model_tags) == 1 else None
    wanted = engine_args(args, record=AsyncEngineArgs, skip=_SHARED)
    hearing = server_args.transcription_model
    if hearing and not server_args.models and hearing not in several:
        several = [*(several or [wanted.model or DEMO_MODEL]), hearing]
        wanted = dataclasses.replace(wanted, model=None)
    if ((several or server_args.models) and wanted.model) or (several and server_args.models):
        raise ConfigError("give the models as words, with --model or with --models; one way only")
    if server_args.headless:
        from quire.executor.nodes.headless import serve_headless

        return serve_headless(wanted)
    from quire.server.serving import serve

    catalog = []
    if several or server_args.models:
        from quire.server.fleet.catalog import catalog_of_words, read_catalog

        if server_args.models:
            catalog = read_catalog(server_args.models, wanted, server_args)
        else:
            catalog = catalog_of_words(several, wanted, server_args)
    elif server_args.allow_model_changes or (server_args.models_dir and wanted.model):
        from quire.server.fleet.catalog import catalog_of_one

        catalog = [catalog_of_one(wanted, server_args)]
    if server_args.models_dir:
        from quire.config.model_lookup.disk.places import found_models
        from quire.server.fleet.catalog import with_found

        found = found_models(server_args.models_dir)
        catalog = with_found(catalog, found, wanted, server_args)
    else:
        for name in several or filter(None, [wanted.model]):
            _hint_at_folders(name)
    if wanted.model and not catalog:
        settings = settings_of(wanted.model).options()
        wanted = over_defaults(wanted, settings)
        server_args = over_defaults(server_args, settings)
    return serve(wanted, server_args, catalog)


def _hint_at_folders(name: str) -> None:
    """Warns of a model of another program's folder, which a server uses only if it is asked to."""
    name = target_of(name) or name
    if is_near(name):
        return
    from quire.config.model_lookup.disk.places import found_models

    with suppress(QuireError):  # such a model cannot be used
        if (model := found_models().find(name)) is not None:
            place = shlex.quote(str(model.place))
            logger.warning(
                "%s also has a model %s on this machine; to serve it: quire serve %s --models-dir "
                "%s", model.source, quoted(name), shlex.quote(name), place,
            )  # fmt: skip


_MODELS_HELP = (
    "A model directory or a hub id; without one, the bundled demo model. Several: each is loaded "
    "when it is asked for (docs/several_models.md)."
)
