"""Settings from the environment, each with the prefix `STANDFAST_`. Arguments given in code win over these."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """What can be set from outside. Times are in seconds."""

    model_config = SettingsConfigDict(env_prefix="STANDFAST_", extra="ignore", env_ignore_empty=True)

    database_url: SecretStr | None = Field(None, description="Postgres to use; the embedded server if unset")
    data_dir: Path | None = Field(None, description="Where the embedded server keeps its data")
    pool_size: int = Field(20, ge=2, description="Most connections that one runtime opens")
    lease_seconds: float = Field(15.0, gt=0, description="How long a silent driver keeps its thread")
    retry_seconds: float = Field(30.0, ge=0, description="How long storage calls outlast a database that is away")
    model: str | None = Field(None, description="Model to use, such as openai:NAME or offline")
    reports_dir: Path | None = Field(None, description="Where publish_report writes; ./reports if unset")
    reports_url: str | None = Field(None, description="Where publish_report posts instead of writing files")
