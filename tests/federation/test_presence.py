"""What a deployed server writes down about who is there, for `fedsofim watch`."""

import json

from inprocess import InProcessGrid
from smalldata import CLASSES, write_records

from fedsofim.federation import server_app
from fedsofim.federation.presence import STATUS
from fedsofim.reports import watch


def test_who_is_there_and_who_refuses_is_written_beside_the_run(tmp_path, data_file):
    owners = []
    for i, epsilon in enumerate((10.0, 10.0, 0.01)):  # the last one's budget is too small
        place = tmp_path / f"owner{i}"
        place.mkdir()
        write_records(place / "records.npz", 60, seed=i)
        data = {"data": str(place / "records.npz"), "state": str(place), "classes": CLASSES}
        owners.append({"partition-id": i, "epsilon": epsilon, "delta": 1e-5, **data})
    given = [
        *("dataset=npz", "settings=published", f"dataset.path={data_file}", "rounds=2"),
        *("partition.clients=3", "engine.wait=0.2", "engine.timeout=0.2", "engine.min_clients=2"),
        f"output.dir={tmp_path / 'runs' / 'run'}",
    ]
    place = server_app.serve(InProcessGrid(owners), overrides=" ".join(given))
    status = json.loads((tmp_path / "runs" / STATUS).read_text())
    assert (status["clients"], status["here"]) == (3, [0, 1])
    assert list(status["refused"]) == ["2"]
    assert status["refused"]["2"].startswith("client 2: ")
    watched = watch.Watched(tmp_path / "runs")
    assert watch.STATUS == STATUS
    assert watched.place() == place.path
    assert watched.status(place.path) == status
    assert "dirichlet" not in watched.html().split("</style>")[1].split("<h2>")[0]
