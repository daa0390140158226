"""Curves of trainings on several devices are drawn from runs that are the same up to rounding."""

import pytest

from experiments.benchmarks.device_curves import DeviceCurvesOptions, main


@pytest.mark.long
def test_curves_of_two_devices_are_those_of_one(tmp_path, four_devices, capsys):
    options = DeviceCurvesOptions(out=tmp_path, devices=(1, 2), epochs=3)
    one, two = main(options)
    assert (one["devices"], two["devices"]) == (1, 2)
    assert one["loss_difference"] == 0 and two["loss_difference"] < 1e-5
    assert two["apart_from"] is None and two["loss"] == pytest.approx(one["loss"], rel=1e-5)
    assert (tmp_path / "device_curves.png").stat().st_size > 10_000
    assert len(main(options)) == 2  # the runs that are there give way to new ones
    assert "by at most" in capsys.readouterr().out


BAD = {
    "--devices must be in 1..4, the devices that there are, got 5": {"devices": (1, 5)},
    "--epochs must be at least 1, got 0": {"epochs": 0},
}


@pytest.mark.parametrize("message", BAD)
def test_an_option_at_fault_is_named_as_it_is_typed(message, four_devices):
    with pytest.raises(ValueError, match=f"device_curves: {message}"):
        DeviceCurvesOptions(**BAD[message]).check()
