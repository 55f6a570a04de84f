"""How a run is run again, without what names a machine."""

from dpft.reports.report import A_PATH, public_configuration


def test_paths_that_the_user_did_not_write_name_no_machine() -> None:
    config = {"model": {"path": "/home/me/run/private/base_model"}, "task": {"data_dir": "/data"}}
    words = ("model.path='/home/me/run/private/base_model'", "task.data_dir=/data")
    shown = public_configuration(config, words)
    assert shown == {"model": {"path": A_PATH}, "task": {"data_dir": "/data"}}
    assert public_configuration(config, ())["task"] == {"data_dir": A_PATH}
