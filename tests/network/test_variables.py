"""The variables that lead programs to the proxy."""

from __future__ import annotations

from handrail.network.variables import proxied

HTTP = b"http://127.0.0.1:800"


def test_variables_of_the_request_are_replaced() -> None:
    given = {b"HTTP_PROXY": b"http://evil:1", b"no_proxy": b"*", b"PATH": b"/bin"}
    env = proxied(given, socks=True, local_binding=False)
    assert env[b"PATH"] == b"/bin"
    assert env[b"HTTP_PROXY"] == env[b"https_proxy"] == env[b"NPM_CONFIG_PROXY"] == HTTP
    assert env[b"ALL_PROXY"] == env[b"ftp_proxy"] == b"socks5h://127.0.0.1:800"
    assert env[b"no_proxy"] == env[b"NO_PROXY"] == env[b"npm_config_noproxy"] == b""
    assert (env[b"CODEX_NETWORK_PROXY_ACTIVE"], env[b"NODE_USE_ENV_PROXY"]) == (b"1", b"1")
    assert env[b"CODEX_NETWORK_ALLOW_LOCAL_BINDING"] == b"0"


def test_other_spellings_are_removed() -> None:
    odd = (b"Pip_Proxy", b"Http_Proxy", b"nPm_config_proxy", b"No_Proxy", b"npm_config_http_proxy")
    env = proxied(dict.fromkeys(odd, b"http://127.0.0.1:9"), socks=True, local_binding=False)
    assert not set(odd) & env.keys()
    assert b"http://127.0.0.1:9" not in env.values()


def test_without_socks_every_variable_has_the_http_form() -> None:
    env = proxied({}, socks=False, local_binding=False)
    assert env[b"ALL_PROXY"] == env[b"FTP_PROXY"] == HTTP


def test_local_addresses_are_exempt_where_they_are_allowed() -> None:
    env = proxied({}, socks=True, local_binding=True)
    assert env[b"NO_PROXY"] == b"localhost,127.0.0.1,::1,10.0.0.0/8,172.16.0.0/12,192.168.0.0/16"
    assert env[b"CODEX_NETWORK_ALLOW_LOCAL_BINDING"] == b"1"


def test_options_of_a_jvm_are_added_to_those_of_the_request() -> None:
    env = proxied({b"JAVA_TOOL_OPTIONS": b"-Xmx1g"}, socks=True, local_binding=False, java=True)
    words = env[b"JAVA_TOOL_OPTIONS"].split()
    assert words[0] == b"-Xmx1g"
    assert b"-Dhttps.proxyHost=127.0.0.1" in words
    assert b"-Dhttp.proxyPort=800" in words


def test_an_ssh_command_of_the_request_stays() -> None:
    given = {b"GIT_SSH_COMMAND": b"ssh -v"}
    assert proxied(given, socks=True, local_binding=False)[b"GIT_SSH_COMMAND"] == b"ssh -v"
    ours = proxied({}, socks=True, local_binding=False, port=4321)[b"GIT_SSH_COMMAND"]
    assert b"ProxyCommand=" in ours
    assert b" 127.0.0.1 4321 %h %p" in ours
