"""The entry point of vLLM's general plugins: runs in every process of an engine, before anything else is built."""

import multiprocessing
import sys

from vllm.logger import init_logger

from paceline.engine_ext.environment import StartError
from paceline.engine_ext.start import check_start

logger = init_logger("vllm.paceline")


def register() -> None:
    """Prepare this process; an engine that can't start as told ends here, before its model is loaded.

    vLLM calls it once in each process, and sometimes again.
    """
    if multiprocessing.parent_process() is None:
        try:
            check_start()
        except StartError as error:
            logger.error("paceline: %s", error)  # noqa: TRY400 - the message says it all, a traceback would hide it
            sys.exit(f"paceline: {error}")
    from vllm.v1.engine.core import EngineCore  # here: vLLM may load plugins while it imports its core

    from paceline.engine_ext import utility
    from paceline.engine_ext.admin import registration
    from paceline.engine_ext.coalescing import patches
    from paceline.engine_ext.page_gate import patches as page_gate

    utility.install(EngineCore)
    registration.install()
    patches.install()
    page_gate.install()
