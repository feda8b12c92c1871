"""Settings from the environment, each with the prefix `STANDFAST_`. Arguments given in code win over these."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """What can be set from outside. Times are in seconds."""

    model_config = SettingsConfigDict(env_prefix="STANDFAST_", extra="ignore", env_ignore_empty=True)

    database_url: SecretStr | None = Field(None, description="Postgres to use; the embedded server if unset")
    pooled_url: SecretStr | None = Field(None, description="A pooler before it, also one by transactions")
    data_dir: Path | None = Field(None, description="Where the embedded server keeps its data")
    pool_size: int = Field(20, ge=2, description="Most connections that one runtime opens")
    lease_seconds: float = Field(15.0, gt=0, description="How long a silent driver keeps its thread")
    retry_seconds: float = Field(30.0, ge=0, description="How long storage calls outlast a database that is away")
    model: str | None = Field(None, description="Model to use, such as openai:NAME or offline")
    reports_dir: Path | None = Field(None, description="Where publish_report writes; ./reports if unset")
    artifacts_url: str | None = Field(None, description="Where artifacts go, a URL for fsspec; Postgres if unset")
    artifact_bytes: int = Field(
        256 * 1024, gt=0, description="Larger results, and texts and bytes in a state, are artifacts"
    )
    webhook_url: SecretStr | None = Field(None, description="Where messages are posted, signed")
    webhook_secret: SecretStr | None = Field(None, description="What they are signed with: whsec_ and base64")
    webhook_topics: str = Field("*", description="Which ones, with commas between")
    reports_url: str | None = Field(None, description="Where publish_report posts instead of writing files")
    authenticator: str | None = Field(None, description="MODULE:ATTR of an async function from a token to a Principal")
    oidc_issuer: str | None = Field(None, description="OpenID provider whose tokens say who acts")
    oidc_audience: str | None = Field(None, description="Whom its tokens must be made out to")
    oidc_jwks_url: str | None = Field(None, description="Where its keys are; its own configuration says so if unset")
    oidc_name_claim: str = Field("sub", description="Which claim is the person's name in every record")
    oidc_groups_claim: str = Field("groups", description="Which claim lists the person's groups; dots lead inside")
    studio_token: SecretStr | None = Field(None, description="Whoever has it may use the Studio server, as `studio`")
    token: SecretStr | None = Field(None, description="The token of whoever uses the command line")
    token_file: Path | None = Field(None, description="A file with it")
    policy_file: Path | None = Field(None, description="YAML or TOML file that says who decides about which calls")
