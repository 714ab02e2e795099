from .test_schema import run_schemathesis, num_good, SHORT
def test_tmp(start_server, tmp_path):
    server = start_server(engine=SHORT)
    run_schemathesis(server, tmp_path, "--phases", "coverage,fuzzing", "--max-examples", "60", "--include-path-regex", "messages")
    print(num_good(server, "/v1/messages"))
