"""Settings say what they are, take the word that comes first, and refuse what is wrong in words that help."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from proxy.settings import (
    EvidenceTable,
    FieldNames,
    Settings,
    SettingsError,
    StoreSettings,
    admin_token,
    load,
    upstream_key,
)

CONFIG = Path(__file__).parents[1] / "config"


def loaded(tmp_path: Path, text: str = "", flags: dict[str, Any] | None = None, **environ: str) -> Settings:
    file = tmp_path / "proxy.toml"
    file.write_text(text)
    return load(file, flags, environ)


def refused(tmp_path: Path, text: str = "", flags: dict[str, Any] | None = None, **environ: str) -> str:
    with pytest.raises(SettingsError) as error:
        loaded(tmp_path, text, flags, **environ)
    return str(error.value).replace(str(tmp_path), "")


def test_the_defaults_are_the_documented_ones() -> None:
    settings = Settings()

    assert (settings.server.host, settings.server.port) == ("127.0.0.1", 8080)
    assert (settings.server.admin_host, settings.server.admin_port) == ("127.0.0.1", 8081)
    assert settings.server.admin_token_env is None
    assert settings.server.max_body_bytes == 67108864
    server, upstream = settings.server, settings.upstream
    assert (server.workers, server.unix_socket, server.keys_env, server.keys_file) == (1, None, None, None)
    assert (server.allow_anyone, upstream.api_key_file, upstream.ca_file) == (False, None, None)
    assert (server.max_header_bytes, server.max_requests, server.max_bytes_in_flight) == (65536, 4096, 1 << 30)
    assert (server.header_seconds, server.body_seconds, server.send_seconds) == (30, 60, 300)
    assert (server.keep_alive_seconds, server.comment_seconds, server.drain_seconds) == (75, 0, 30)
    assert (upstream.connect_seconds, upstream.first_byte_seconds, upstream.idle_seconds) == (15, 1200, 600)
    assert (settings.upstream.base_url, settings.upstream.api_key_env) == ("https://api.openai.com/v1", None)
    assert (settings.compaction.mode, settings.compaction.layout, settings.compaction.strict) == ("on", "single", False)
    assert (settings.policy.mode, settings.policy.output_tools) == ("off", ("final_result",))
    assert (settings.policy.managed_rounds, settings.policy.managed_tokens) == (3, 8000)
    assert (settings.policy.redirect_timeout_ms, settings.policy.keep_alive_ms) == (30_000, 1_000)
    assert (settings.store.uri, settings.store.data_dir, settings.store.retention_days) == (None, None, None)
    assert settings.store.read_timeout_ms == 250
    assert (settings.store.records_cache_bytes, settings.store.contents_cache_bytes) == (16 << 20, 16 << 20)
    assert (settings.store.queue_bytes, settings.store.close_grace_ms) == (64 << 20, 20_000)
    assert settings.tenant.by == "authorization"
    assert settings.evidence == []
    assert load(environ={}) == settings


def test_default_toml_holds_every_default_and_nothing_else() -> None:
    assert load(CONFIG / "default.toml", environ={}) == Settings()


def test_default_toml_names_every_key_with_a_comment_on_it() -> None:
    lines = (CONFIG / "default.toml").read_text().splitlines()

    def named(model: type[BaseModel]) -> list[str]:
        return [name for name, field in model.model_fields.items() if name != "fields"]

    keys = {name for field in Settings.model_fields.values() for name in _keys(field.annotation)}
    for key in [*keys, *named(EvidenceTable), *named(FieldNames)]:
        assert any(re.match(rf"(# )?{key} = ", line) for line in lines), key


def _keys(annotation: Any) -> list[str]:
    return list(annotation.model_fields) if isinstance(annotation, type) and issubclass(annotation, BaseModel) else []


def test_what_default_toml_says_of_evidence_tables_is_true(tmp_path: Path) -> None:
    text = (CONFIG / "default.toml").read_text()
    table = text[text.index("\n# [[evidence]]\n") :].replace("\n# ", "\n")

    (given,) = loaded(tmp_path, table).evidence
    (plain,) = loaded(tmp_path, '[[evidence]]\nformat = "auto"\ntools = ["search"]\ncite = "cite"').evidence

    assert given == plain
    assert tomllib.loads(table)["evidence"][0]["fields"].keys() == FieldNames.model_fields.keys()


@pytest.mark.parametrize("name", ["haiku.toml", "auto.toml"])
def test_an_example_loads(name: str) -> None:
    (table,) = load(CONFIG / name, environ={}).evidence
    assert table.format == name.removesuffix(".toml")


def test_a_table_takes_the_defaults_of_its_format(tmp_path: Path) -> None:
    haiku, auto = loaded(
        tmp_path, '[[evidence]]\nformat = "haiku"\n[[evidence]]\nformat = "auto"\ntools = ["lookup", "lookup"]'
    ).evidence

    assert (haiku.name, haiku.tools, haiku.cite) == ("haiku", ("search", "execute_code"), "cite")
    assert (haiku.ids, haiku.undeclared) == ("auto", "receipt")
    assert (auto.name, auto.tools, auto.cite) == ("auto", ("lookup",), None)
    assert (auto.ids, auto.undeclared) == ("auto", "keep")
    assert auto.fields.id[0] == "chunk_id"


def test_flags_come_before_the_environment_and_the_environment_before_the_file(tmp_path: Path) -> None:
    file = "[server]\nport = 1\nadmin_port = 1\nhost = 'file'"
    environ = {"EVIDENCE_PROXY_SERVER__PORT": "2", "EVIDENCE_PROXY_SERVER__HOST": "environment"}

    settings = loaded(tmp_path, file, {"server.port": ("--port", 3), "server.host": ("--host", None)}, **environ)

    assert (settings.server.port, settings.server.host, settings.server.admin_port) == (3, "environment", 1)


def test_the_environment_gives_every_kind_of_value(tmp_path: Path) -> None:
    settings = loaded(
        tmp_path,
        EVIDENCE_PROXY_UPSTREAM__BASE_URL="http://127.0.0.1:9/v1/",
        EVIDENCE_PROXY_UPSTREAM__IDLE_SECONDS="2.5",
        EVIDENCE_PROXY_COMPACTION__STRICT="True",
        EVIDENCE_PROXY_POLICY__OUTPUT_TOOLS='["a", "b"]',
        EVIDENCE_PROXY_STORE__RETENTION_DAYS="7",
        EVIDENCE_PROXY_STORE__DATA_DIR="/somewhere",
        EVIDENCE_PROXY_EVIDENCE='[{"format": "haiku"}]',
        EVIDENCE_PROXY_COMMENT="a variable of the host's own",
        EVIDENCE_PROXYING="another",
    )

    assert settings.upstream.base_url == "http://127.0.0.1:9/v1"
    assert settings.upstream.idle_seconds == 2.5
    assert settings.compaction.strict is True
    assert settings.policy.output_tools == ("a", "b")
    assert (settings.store.retention_days, settings.store.data_dir) == (7, Path("/somewhere"))
    assert settings.evidence[0].name == "haiku"


def test_settings_built_by_hand_read_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVIDENCE_PROXY_SERVER__PORT", "1")
    monkeypatch.setenv("SERVER", "{}")

    assert Settings().server.port == 8080
    assert Settings(compaction={"mode": "observe"}).compaction.mode == "observe"  # type: ignore[arg-type]


def test_the_data_directory_is_where_the_platform_keeps_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/user")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    assert StoreSettings().directory == Path("/home/user/.local/share/evidence-proxy")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert StoreSettings().directory == Path("/data/evidence-proxy")
    assert StoreSettings(data_dir=Path("~/x")).directory == Path("/home/user/x")
    assert StoreSettings(uri="/tables", data_dir=Path("/x")).directory == Path("/tables")
    assert StoreSettings(uri="memory://", data_dir=Path("/x")).directory is None


@pytest.mark.parametrize(
    "text, says",
    [
        ("[server]\nprot = 1", "/proxy.toml: unknown key server.prot; did you mean port? expected one of host, port, "),
        (
            "[sever]\nport = 1",
            "/proxy.toml: unknown key sever; did you mean server? expected one of server, upstream, ",
        ),
        ("port = 1", "/proxy.toml: unknown key port; expected one of server, "),
        ("server = 1", "/proxy.toml: server = 1: expected a table with the keys host, port, "),
        ('[server]\nport = "x"', '/proxy.toml: server.port = "x": expected a whole number from 0 to 65535'),
        ("[server]\nport = 70000", "/proxy.toml: server.port = 70000: expected a whole number from 0 to 65535"),
        ("[server]\nport = true", "/proxy.toml: server.port = true: expected a whole number from 0 to 65535"),
        ("[server]\ndrain_seconds = -1", "server.drain_seconds = -1: expected a number from 0 to 86400"),
        ("[server]\nbody_seconds = nan", "server.body_seconds = NaN: expected a number from 0 to 86400"),
        ("[upstream]\nidle_seconds = '1'", 'upstream.idle_seconds = "1": expected a number from 0 to 86400'),
        ("[server]\nmax_requests = 0", "server.max_requests = 0: expected a whole number of at least 1"),
        (
            "[server]\nmax_bytes_in_flight = 2048",
            "server.max_bytes_in_flight = 2048: expected at least max_body_bytes (67108864), or the largest request",
        ),
        ("[server]\nport = 1.5", "/proxy.toml: server.port = 1.5: expected a whole number from 0 to 65535"),
        ('[server]\nhost = ""', '/proxy.toml: server.host = "": expected a text that is not empty'),
        ("[server]\nmax_body_bytes = 0", "server.max_body_bytes = 0: expected a whole number of at least 1024"),
        ('[compaction]\nmode = "of"', '/proxy.toml: compaction.mode = "of": expected "on", "observe" or "off"'),
        ("[compaction]\nmode = false", 'compaction.mode = false: expected "on", "observe" or "off"'),
        ('[compaction]\nstrict = "yes"', 'compaction.strict = "yes": expected true or false'),
        ('[compaction]\nlayout = "appended"', 'compaction.layout = "appended": expected "single" or "append"'),
        ('[policy]\nmode = "on"', '/proxy.toml: policy.mode = "on": expected "off", "record" or "enforce"'),
        ("[policy]\nredirect_timeout_ms = 0", "policy.redirect_timeout_ms = 0: expected a whole number of at least 1"),
        ('[policy]\nkeep_alive_ms = "1s"', 'policy.keep_alive_ms = "1s": expected a whole number of at least 1'),
        ('[policy]\noutput_tools = "x"', 'policy.output_tools = "x": expected a list of texts'),
        ("[policy]\ncontinuation_prefixes = [1]", "policy.continuation_prefixes[0] = 1: expected a list of texts"),
        ("[store]\nretention_days = 0", "store.retention_days = 0: expected a whole number of at least 1"),
        (
            '[store]\nuri = "http://b"',
            'store.uri = "http://b": expected "memory://", a local path, or an address like "s3://bucket/path"',
        ),
        ('[store]\nuri = "s3:///x"', 'store.uri = "s3:///x": expected "memory://"'),
        ('[store]\nuri = "s3://b c"', "with a name after s3:// and without spaces"),
        ('[store]\nuri = ""', 'store.uri = "": expected "memory://", a local path'),
        ("[store]\nqueue_bytes = 1", "store.queue_bytes = 1: expected a whole number of at least 65536"),
        ("[store]\nrecords_cache_bytes = -1", "store.records_cache_bytes = -1: expected a whole number of at least 0"),
        ("[store]\ncontents_cache_bytes = -1", "store.contents_cache_bytes = -1: expected a whole number of at least"),
        ("[store]\nclose_grace_ms = -1", "store.close_grace_ms = -1: expected a whole number of at least 0"),
        ('[tenant]\nby = "ip"', 'tenant.by = "ip": expected "authorization", "none" or "header:NAME"'),
        ('[tenant]\nby = "header:a b"', 'tenant.by = "header:a b": expected "authorization", "none" or "header:NAME"'),
        ("[[evidence]]\ntools = ['a']", 'evidence[0].format is missing: expected "haiku", "auto" or "tagged"'),
        (
            '[[evidence]]\nformat = "tagged"\ntools = ["search"]',
            'evidence[0].tools = ["search"]: expected none: the tag itself tells what is evidence',
        ),
        ('[[evidence]]\nformat = "auto"', "evidence[0].tools = []: expected the name of at least one tool"),
        (
            '[[evidence]]\nformat = "haiku"\ntools = []',
            "evidence[0].tools = []: expected the name of at least one tool",
        ),
        ("[policy]\nmanaged_rounds = 0", "policy.managed_rounds = 0: expected a whole number from 1 to 20"),
        ("[policy]\nmanaged_tokens = -1", "policy.managed_tokens = -1: expected a whole number of at least 0"),
        (
            '[[evidence]]\nformat = "auto"\ntools = ["s"]\ndatabase = "x"',
            'database is read by format = "haiku" only; remove it',
        ),
        (
            '[[evidence]]\nformat = "haiku"\ndatabase = "s3://key:secret@host/kb"',
            "database must not carry credentials; they come from the environment",
        ),
        ('[[evidence]]\nformat = "haiku"\ncite = ""', 'evidence[0].cite = "": expected the name of a cite tool'),
        ('[[evidence]]\nformat = "haiku"\nids = "x"', 'evidence[0].ids = "x": expected "global", "local" or "auto"'),
        ('[[evidence]]\nformat = "haiku"\nundeclared = "x"', 'undeclared = "x": expected "keep" or "receipt"'),
        (
            '[[evidence]]\nformat = "haiku"\ntool = "x"',
            "unknown key evidence[0].tool; did you mean tools? expected one of ",
        ),
        (
            '[[evidence]]\nformat = "haiku"\n[evidence.fields]\nid = ["x"]',
            'evidence[0].fields is read by format = "auto" only; remove it',
        ),
        (
            '[[evidence]]\nformat = "auto"\ntools = ["s"]\n[evidence.fields]\nids = ["x"]',
            "unknown key evidence[0].fields.ids; did you mean id?",
        ),
        (
            '[[evidence]]\nformat = "haiku"\n[[evidence]]\nformat = "haiku"\ntools = ["x"]',
            'evidence: two tables are called "haiku"; give each [[evidence]] its own name',
        ),
        (
            '[[evidence]]\nformat = "haiku"\n[[evidence]]\nformat = "auto"\ntools = ["search"]',
            'evidence.tools: "search" stands in the tables "haiku" and "auto"; a tool belongs to one table',
        ),
        (
            '[upstream]\nbase_url = "ftp://x"',
            'upstream.base_url = "ftp://x": expected an address like "https://api.openai',
        ),
        ('[upstream]\nbase_url = "localhost:1"', 'upstream.base_url = "localhost:1": expected an address like'),
        ('[upstream]\nbase_url = "http://x:y/"', 'upstream.base_url = "http://x:y/": expected an address like'),
        ('[upstream]\nbase_url = ""', 'upstream.base_url = "": expected an address like'),
        ("[server\n", "/proxy.toml: not TOML: Expected ']'"),
    ],
)
def test_a_wrong_value_is_refused_with_its_key_what_came_what_is_allowed_and_the_file(
    tmp_path: Path, text: str, says: str
) -> None:
    message = refused(tmp_path, text)

    assert message.startswith("/proxy.toml: ")
    assert says in message
    assert "\n" not in message
    assert "pydantic" not in message


def test_every_wrong_value_has_its_line(tmp_path: Path) -> None:
    assert len(refused(tmp_path, "[server]\nport = -1\nx = 1\n[tenant]\nby = 1").splitlines()) == 3


@pytest.mark.parametrize(
    "variable, value, says",
    [
        ("EVIDENCE_PROXY_SERVER__PORT", "abc", 'server.port = "abc": expected a whole number from 0 to 65535'),
        ("EVIDENCE_PROXY_SERVER__PROT", "1", "unknown key server.prot; did you mean port?"),
        ("EVIDENCE_PROXY_SEVER__PORT", "1", "unknown key sever; did you mean server?"),
        ("EVIDENCE_PROXY_COMPACTION__STRICT", "maybe", 'compaction.strict = "maybe": expected true or false'),
        ("EVIDENCE_PROXY_EVIDENCE", "[{", 'evidence = "[{": expected a list of tables'),
        (
            "EVIDENCE_PROXY_EVIDENCE",
            '[{"format": "x"}]',
            'evidence[0].format = "x": expected "haiku", "auto" or "tagged"',
        ),
        ("EVIDENCE_PROXY_POLICY__OUTPUT_TOOLS", "a,b", 'policy.output_tools = "a,b": expected a list of texts'),
    ],
)
def test_a_wrong_value_names_the_variable_it_came_from(tmp_path: Path, variable: str, value: str, says: str) -> None:
    message = refused(tmp_path, "[server]\nport = 1", None, **{variable: value})

    assert message.startswith(f"{variable}: {says}")


def test_a_wrong_value_names_the_flag_it_came_from(tmp_path: Path) -> None:
    message = refused(tmp_path, "[server]\nport = 1", {"server.port": ("--port", 99999)})

    assert message == "--port: server.port = 99999: expected a whole number from 0 to 65535"


@pytest.mark.parametrize(
    "text",
    [
        '[upstream]\nbase_url = "https://user:hunter2@x/v1"',
        '[upstream]\nbase_url = "https://x/v1?key=hunter2"',
        '[upstream]\napi_key_env = "sk-hunter2"',
        '[upstream]\napi_key_env = "hunter2"',
        '[store]\nuri = "s3://user:hunter2@bucket/path"',
        '[store]\nuri = "az://bucket/path?sig=hunter2"',
        '[server]\nadmin_token_env = "hunter2 "',
    ],
)
def test_a_credential_typed_by_mistake_is_not_repeated(tmp_path: Path, text: str) -> None:
    message = refused(tmp_path, text)

    assert re.match(r"/proxy\.toml: (upstream|server|store)\.", message)
    assert "hunter2" not in message


def test_a_named_key_must_be_there_and_fit_a_header(tmp_path: Path) -> None:
    text = '[upstream]\napi_key_env = "THE_KEY"'

    assert "unset or empty" in refused(tmp_path, text)
    assert "unset or empty" in refused(tmp_path, text, THE_KEY="  ")
    assert "cannot stand in a header" in refused(tmp_path, text, THE_KEY="a\nb")
    assert upstream_key(loaded(tmp_path, text, THE_KEY=" sk-1\n"), {"THE_KEY": " sk-1\n"}) == "sk-1"
    assert upstream_key(Settings()) is None


def test_a_key_in_a_file_must_be_there_and_fit_a_header(tmp_path: Path) -> None:
    key = tmp_path / "key"
    text = f'[upstream]\napi_key_file = "{key}"'

    assert "cannot be read (FileNotFoundError)" in refused(tmp_path, text)
    key.write_text("hunter2 hunter2")
    message = refused(tmp_path, text)
    assert "the file that upstream.api_key_file names holds something that cannot stand" in message
    assert "hunter2" not in message
    key.write_text("sk-1\n")
    assert upstream_key(loaded(tmp_path, text), {}) == "sk-1"
    assert "not both" in refused(tmp_path, f'{text}\napi_key_env = "THE_KEY"', THE_KEY="x")


def test_a_file_that_cannot_be_read_is_one_clear_line(tmp_path: Path) -> None:
    latin = tmp_path / "latin.toml"
    latin.write_bytes(b"# caf\xe9")
    for file, says in [
        (tmp_path / "missing.toml", "no such file; --config expects a TOML file"),
        (tmp_path, "cannot be read (Is a directory)"),
        (latin, "not UTF-8 at byte 5"),
    ]:
        with pytest.raises(SettingsError) as error:
            load(file, environ={})
        assert str(error.value).startswith(f"{file}: {says}")


@pytest.mark.parametrize("uri", ["s3://bucket", "s3://bucket/a/b", "gs://bucket/x", "az://container/x", "db://name"])
def test_a_store_may_lie_where_replicas_share_it(tmp_path: Path, uri: str) -> None:
    section = loaded(tmp_path, f'[store]\nuri = "{uri}"').store
    assert (section.address, section.directory) == (uri, None)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_an_admin_port_of_this_machine_only_needs_no_token(tmp_path: Path, host: str) -> None:
    assert admin_token(loaded(tmp_path, f'[server]\nadmin_host = "{host}"'), {}) is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "proxy.example"])
def test_an_admin_port_that_others_reach_needs_a_token(tmp_path: Path, host: str) -> None:
    open_to_all = loaded(tmp_path, f'[server]\nadmin_host = "{host}"')
    with pytest.raises(SettingsError, match=r"server\.admin_token_env is missing"):
        admin_token(open_to_all, {})
    named = loaded(tmp_path, f'[server]\nadmin_host = "{host}"\nadmin_token_env = "T"')
    assert admin_token(named, {"T": " 0123456789abcdef\n"}) == "0123456789abcdef"


@pytest.mark.parametrize("token", [None, "", "short-hunter2", "sixteen chars hunter2", "ünprintable-hunter2"])
def test_what_keeps_nobody_out_is_no_token_and_is_not_shown(tmp_path: Path, token: str | None) -> None:
    settings = loaded(tmp_path, '[server]\nadmin_token_env = "T"')
    with pytest.raises(SettingsError) as refused:
        admin_token(settings, {} if token is None else {"T": token})
    assert "at least 16" in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_evidence_of_any_format_may_be_cited_with_the_proxys_own_tool(tmp_path: Path) -> None:
    file = tmp_path / "proxy.toml"
    file.write_text(
        "[policy]\nmanaged_rounds = 5\nmanaged_tokens = 0\n"
        '[[evidence]]\nformat = "auto"\ntools = ["search"]\ncite = "managed"\n'
        '[[evidence]]\nformat = "haiku"\ntools = ["find"]\ncite = "managed"\n'
        '[[evidence]]\nformat = "tagged"\ncite = "managed"\n'
    )
    settings = load(file, environ={})
    assert [table.cite for table in settings.evidence] == ["managed"] * 3
    assert (settings.policy.managed_rounds, settings.policy.managed_tokens) == (5, 0)
