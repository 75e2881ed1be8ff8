"""What a mistake looks like on the command line."""


def assert_refused(done, *words):
    """One line on stderr that says what is wrong, and exit code 2."""
    assert done.returncode == 2, done
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("fedsofim: ")
    assert "Traceback" not in line
    for word in words:
        assert word in line
