"""Structured logs on standard error: one line an event, with the request's id, and never a secret."""

import logging
import logging.config

import structlog

from paceline.control_api.config import LogFormat


def configure(level: str, log_format: LogFormat) -> None:
    """Send the logs of this program and of its libraries through one formatter."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderers: list[structlog.typing.Processor] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        if log_format is LogFormat.JSON
        else [structlog.dev.ConsoleRenderer(colors=False)]
    )
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {
                "structured": {
                    "()": structlog.stdlib.ProcessorFormatter,
                    "foreign_pre_chain": shared,
                    "processors": [structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
                }
            },
            "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "structured"}},
            "root": {"handlers": ["stderr"], "level": "WARNING"},
            # Access lines are our own, with the request's id; uvicorn's would repeat them.
            "loggers": {"paceline": {"level": level.upper()}, "uvicorn.error": {"level": "WARNING"}},
        }
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
