"""Structures are read from extxyz files and ASE databases as they were written, or refused."""

import gzip
import sqlite3

import numpy as np
import pytest

from jaxgnn.datasets import read_ase, read_extxyz

TEXT = """3
Lattice="4.0 0.0 0.0 1.0 5.0 0.0 0.0 0.0 6.0" Properties=species:S:1:pos:R:3:tag:I:1:forces:R:3 \
energy=-1.5e0 stress="1 2 3 2 4 5 3 5 6" name="a \\"b\\" = c" pbc="T T F" converged
H 0.0 0.5 1 7 0.1 0.2 0.3
O 1.0 -.5 2 8 -0.1 0.0 0.0
H 2.0 0.5 3 9 0 0 0

1
energy = -0.5 Properties=Z:I:1:pos:R:3
6 0 0 0
"""
FIRST, *_ = TEXT.partition("\n\n")
LATTICE = 'Lattice="4.0 0.0 0.0 1.0 5.0 0.0 0.0 0.0 6.0"'


@pytest.fixture
def write(tmp_path):
    def write(text, name="data.extxyz"):
        path = tmp_path / name
        path.write_bytes(text.encode())
        return path

    return write


def test_structures_have_their_atoms_cells_energies_forces_and_stresses(write):
    data = read_extxyz(write(TEXT), missing="nan")
    assert (data.name, data.num_structures, len(data)) == ("data.extxyz", 2, 2)
    assert data.elements == ("H", "C", "O") and data.species.tolist() == [0, 2, 0, 1]
    assert data.num_atoms_of_each.tolist() == [3, 1] and data.energies.tolist() == [-1.5, -0.5]
    np.testing.assert_array_equal(data.positions[1], [1, -0.5, 2])
    np.testing.assert_array_equal(data.cells[0], [[4, 0, 0], [1, 5, 0], [0, 0, 6]])
    assert data.periodic.tolist() == [[True, True, False], [False] * 3] and not data.cells[1].any()
    np.testing.assert_array_equal(data.forces[:2], [[0.1, 0.2, 0.3], [-0.1, 0, 0]])
    assert np.isnan(data.forces[3]).all() and np.isnan(data.stresses[1]).all()
    np.testing.assert_array_equal(data.stresses[0], [[1, 2, 3], [2, 4, 5], [3, 5, 6]])
    packed = write("", "data.extxyz.gz")
    packed.write_bytes(gzip.compress(TEXT.encode()))
    unpacked = read_extxyz(packed, missing="nan")
    np.testing.assert_array_equal(unpacked.positions, data.positions)


def test_keys_and_elements_may_be_chosen(write):
    text = FIRST.replace("energy=", "DFT_energy=").replace("forces", "DFT_forces")
    with pytest.warns(UserWarning, match="no (energy|forces), and 'DFT_") as warned:
        bare = read_extxyz(write(text))
    assert len(warned) == 2
    assert bare.energies is None and bare.forces is None
    data = read_extxyz(
        write(text), energy="DFT_energy", forces="DFT_forces", elements=("O", "H", "C")
    )
    assert data.elements == ("O", "H", "C") and data.species.tolist() == [1, 0, 1]
    assert data.energies.tolist() == [-1.5] and data.forces.shape == (3, 3)


@pytest.mark.parametrize("numbers", ["1 2 3 5 3 2", "[[1, 2, 3], [2, 2, 5], [3, 5, 3]]"])
def test_a_virial_is_minus_the_stress_times_the_volume(write, numbers):
    text = FIRST.replace('stress="1 2 3 2 4 5 3 5 6"', f'virial="{numbers}"')
    found = read_extxyz(write(text)).stresses[0]
    np.testing.assert_allclose(found, -np.array([[1, 2, 3], [2, 2, 5], [3, 5, 3]]) / 120)


SPELLINGS = {
    "keys in small letters": ("Lattice=", "lattice="),
    "keys in capitals": ("pbc=", "PBC="),
    "Properties in small letters": ("Properties=", "properties="),
    "properties in capitals": ("species:S:1:pos", "SPECIES:S:1:POS"),
    "properties as ASE calls them": ("species:S:1:pos", "symbols:S:1:positions"),
    "cell vectors as a nested array": (LATTICE, "Lattice=[[4, 0, 0], [1, 5, 0], [0, 0, 6]]"),
    "cell vectors in braces": (LATTICE, "Lattice={4 0 0 1 5 0 0 0 6}"),
    "cell vectors in JSON": (LATTICE, 'Lattice="_JSON [[4, 0, 0], [1, 5, 0], [0, 0, 6]]"'),
    "flags as words": ('"T T F"', '"True true FALSE"'),
    "flags as numbers": ('"T T F"', '"1 1 0"'),
    "flags in JSON": ('"T T F"', '"_JSON [true, true, false]"'),
    "an empty value before another pair": ("converged", "config_type= "),
    "an empty value at the end": ("converged", "config_type="),
    "an empty value before a quote": ("name=", "config_type= name="),
    "apostrophes": ("converged", "author=O'Brien's"),
    "a key in quotes": ("converged", '"is it converged?"=yes'),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_structure_may_be_spelt_in_many_ways(name, write):
    old, new = SPELLINGS[name]
    assert FIRST.count(old) == 1
    _assert_same(read_extxyz(write(FIRST.replace(old, new))), read_extxyz(write(FIRST)))


def test_one_flag_is_that_of_all_axes(write):
    for flag, expected in (("T", True), ("False", False), ("1", True)):
        data = read_extxyz(write(FIRST.replace('"T T F"', flag)))
        assert data.periodic.tolist() == [[expected] * 3]


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("energy=", "Energy=", "no energy, and 'Energy' is ignored; .*, energy='Energy'"),
        ("energy=", "REF_energy=", "no energy, and 'REF_energy'"),
        ("energy=", "energies=", "no energy, and 'energies'"),
        ("forces:R", "force:R", "no forces, and 'force' is ignored; .*, forces='force'"),
        ("forces:R", "Forces:R", "no forces, and 'Forces'"),
        ("stress=", "Stress=", "no stress, and 'Stress'"),
        ("stress=", "virials=", "no virial, and 'virials'"),
        (f"{LATTICE} ", 'cell="1 2 3" ', "no Lattice, and 'cell' is ignored; name it Lattice"),
    ],
)
def test_names_that_were_probably_meant_are_in_a_warning(old, new, message, write):
    text = FIRST.replace(old, new).replace(' pbc="T T F"', "" if "cell" in new else ' pbc="T T F"')
    with pytest.warns(UserWarning, match=f"data.extxyz: line 2 and 1 more: {message}") as warned:
        read_extxyz(write(f"{text}\n{text}"))
    assert len(warned) == 1 and warned[0].filename == __file__


def test_a_name_like_that_of_a_label_is_no_matter_where_the_label_is(write):
    text = FIRST.replace("converged", "Energy=3 free_energy=-1 force_constant=2")
    assert read_extxyz(write(text)).energies.tolist() == [-1.5]


@pytest.mark.parametrize("label", ["energy", "forces", "stress"])
def test_structures_without_a_label_of_others_are_named_left_out_or_nan(label, write, tmp_path):
    old, new = {
        "energy": ("energy=-1.5e0 ", ""),
        "forces": ("tag:I:1:forces:R:3", "tag:I:1:others:R:3"),
        "stress": ('stress="1 2 3 2 4 5 3 5 6" ', ""),
    }[label]
    full = FIRST.replace('"T T F"', "T")
    text = write("\n".join([full, full.replace(old, new), full, full.replace(old, new)]))
    database = tmp_path / "data.db"
    _database(database, *[ROW | {"pbc": 7} | one for one in [{}, {label: None}] * 2])
    for read, path, places in (
        (read_extxyz, text, r"1 \(line 6\), 3 \(line 16\)"),
        (read_ase, database, r"1 \(row 2\), 3 \(row 4\)"),
    ):
        expected = f"expected {label} of all 4 structures, .* got none of structure {places}; "
        with pytest.raises(ValueError, match=f"{path.name}: {expected}missing='skip'"):
            read(path)
        rest = read(path, missing="skip")
        assert len(rest) == 2 and rest[1][label] is not None
        partial = read(path, missing="nan")
        assert len(partial) == 4 and partial[0][label] is None
        assert partial.unlabelled(label).tolist() == [1, 3] and not rest.unlabelled(label).size
        values = {"energy": "energies", "stress": "stresses"}.get(label, label)
        assert 0 < np.isnan(getattr(partial, values)).mean() < 1
        with pytest.raises(ValueError, match=f"{read.__name__}: missing must be 'error', 'nan'"):
            read(path, missing="drop")


def test_a_stress_is_not_expected_of_structures_without_a_volume(write):
    molecule = "energy=1 Properties=species:S:1:pos:R:3:forces:R:3\nH 0 0 0 0 0 0\n"
    crystal = FIRST.replace('"T T F"', "T")
    data = read_extxyz(write(f"{crystal}\n1\n{molecule}"))
    assert np.isnan(data.stresses[1]).all() and np.isfinite(data.forces).all()
    assert [data.unlabelled(name).tolist() for name in ("forces", "stress")] == [[], [1]]
    with pytest.raises(ValueError, match="label must be one of energy, forces, stress, got pos"):
        data.unlabelled("pos")
    bare = read_extxyz(write("1\n\nH 0 0 0\n1\n\nH 0 0 0\n"))
    assert bare.unlabelled("energy").tolist() == [0, 1]
    energies, forces = "2\nenergy=1 \nH 0 0 0\nH 0 0 1\n", f"1\n{molecule[8:]}"
    with pytest.raises(ValueError, match="expected a structure with energy and forces, as others"):
        read_extxyz(write(energies + forces), missing="skip")


def test_plain_xyz_has_symbols_and_positions(write):
    data = read_extxyz(write("2\r\nmade by hand (2020)\r\nAr 0 0 0\r\nAr 0 0 3.7\r\n"))
    assert data.energies is None and data.elements == ("Ar",) and not data.periodic.any()


BAD = {
    "truncated": (
        "\nH 2.0 0.5 3 9 0 0 0",
        "",
        "line 1: expected a line of pairs and 3 atoms, got 2 atoms",
    ),
    "a count too small": ("3\n", "2\n", "line 5: expected a number of atoms, got 'H 2.0"),
    "a count too large": ("3\n", "4\n", "line 1: .* 4 atoms, got 3 atoms"),
    "a huge count": ("3\n", "9" * 30 + "\n", "line 1: expected a line of pairs"),
    "no atoms": ("3\n", "0\n", "line 1: expected a number of atoms, got '0'"),
    "a column too few": ("-.5 2 8", "-.5 8", "line 4: expected 8 columns, got 7"),
    "no number": ("-.5 2 8", "1_0 2 8", "line 4, column 3: expected a finite number, got '1_0'"),
    "NaN": ("-.5 2 8", "nan 2 8", "line 4, column 3: expected a finite number, got 'nan'"),
    "an energy of words": ("-1.5e0", "low", "line 2: energy: expected 1 finite number, got 'low'"),
    "an infinite energy": ("-1.5e0", "inf", "line 2: energy: expected 1 finite number, got 'inf'"),
    "a short lattice": ("4.0 0.0 0.0 1.0", "4.0", "line 2: Lattice: expected 9 finite numbers"),
    "a flat lattice": ("1.0 5.0", "1.0 0.0", "line 2: Lattice: expected linearly independent"),
    "a stress of five": (
        "1 2 3 2 4 5 3 5 6",
        "1 2 3 4 5",
        "stress: expected 9 or 6 finite numbers",
    ),
    "bits of pbc": ("T T F", "T T", "line 2: pbc: expected T or F, or 3 of them, got 'T T'"),
    "numbers of pbc": ("T T F", "1 1 2", "line 2: pbc: expected T or F, or 3 of them, got '1 1 2'"),
    "an empty pbc": ('"T T F"', '""', "line 2: pbc: expected T or F, or 3 of them, got ''"),
    "an empty energy": ("-1.5e0", "", "line 2: energy: expected 1 finite number, got ''"),
    "a long lattice": ("4.0 0.0 0.0 1.0", "4.0 0 0 0 1.0", "line 2: Lattice: expected 9 finite"),
    "an empty lattice": (LATTICE, "Lattice=", "line 2: Lattice: expected 9 finite numbers, got ''"),
    "no lattice": (LATTICE, "", "line 2: Lattice: expected linearly independent vectors along"),
    "two lattices": ("converged", 'lattice="1 0 0 0 1 0 0 0 1"', "Lattice: expected one value"),
    "two energies": ("converged", "energy=-2", "line 2: energy: expected one value, got 2"),
    "positions twice": ("tag:I:1:forces", "tag:I:1:POS", "Properties: expected one property pos"),
    "an unknown kind": ("pos:R:3", "pos:Q:3", "line 2: Properties: expected different names"),
    "no positions": ("pos:R:3", "at:R:3", "line 2: Properties: expected pos, and species or Z"),
    "flat positions": ("pos:R:3:tag:I:1", "pos:R:2:tag:I:2", "expected 3 columns of pos, got 2"),
    "an unknown element": ("O 1.0", "Xx 1.0", "line 4, column 1: expected a chemical symbol"),
    "an open quote": ('"T T F"', '"T T F', "line 2: pbc: expected a quote or bracket that is clo"),
    "an open bracket": (
        '"T T F"',
        "[T T F",
        "line 2: pbc: expected a quote or bracket that is clo",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_extxyz_file_is_named_with_its_line(name, write):
    old, new, message = BAD[name]
    assert FIRST.count(old) == 1 or name.startswith("a count") or "huge" in name or "atoms" in name
    with pytest.raises(
        ValueError, match=f"data.extxyz: {'' if 'line' in message else '.*'}{message}"
    ):
        read_extxyz(write(FIRST.replace(old, new, 1)))


def test_comments_that_are_no_pairs_are_ignored(write):
    for comment in ("it's 5\" wide [", "", "=== frame 3 ===", "don't = won't 'tis", "\\"):
        data = read_extxyz(write(f"1\n{comment}\nAr 0 0 0\n"))
        assert data.energies is None and data.elements == ("Ar",)


def test_other_bad_input_is_named(write, tmp_path):
    for number, expected in (("0", "an atomic number"), ("119", "an atomic number")):
        with pytest.raises(ValueError, match=f"line 3, column 1: expected {expected}, got"):
            read_extxyz(write(f"1\nProperties=Z:I:1:pos:R:3\n{number} 0 0 0\n"))
    with pytest.raises(ValueError, match="line 4, column 1: expected one of C H, got 'O'"):
        read_extxyz(write(TEXT), elements=("H", "C"))
    for elements in ("H", ("H", "H"), ("Xx",)):
        with pytest.raises(ValueError, match="read_extxyz: elements must be different chemical"):
            read_extxyz(write(TEXT), elements=elements)
    with pytest.raises(ValueError, match="virial: expected a Lattice whose volume"):
        read_extxyz(write('1\nvirial="1 2 3 4 5 6"\nH 0 0 0\n'))
    with pytest.raises(ValueError, match="expected at least one structure, got an empty file"):
        read_extxyz(write("\n\n"))
    with pytest.raises(FileNotFoundError, match=r"no file .*expected structures in extended XYZ"):
        read_extxyz(tmp_path / "nowhere.extxyz")
    with pytest.raises(ValueError, match="line 1: expected text, got a NUL byte"):
        read_extxyz(write("\0\xff"))


# -- databases of ASE ----------------------------------------------------------------------------

COLUMNS = "id INTEGER PRIMARY KEY, numbers, positions, cell, pbc, energy, forces, stress"
ROW = {
    "numbers": np.array([1, 8, 1], "<i4").tobytes(),
    "positions": np.array([[0, 0.5, 1], [1, -0.5, 2], [2, 0.5, 3]], "<f8").tobytes(),
    "cell": np.array([[4, 0, 0], [1, 5, 0], [0, 0, 6]], "<f8").tobytes(),
    "pbc": 3,
    "energy": -1.5,
    "forces": np.array([[0.1, 0.2, 0.3], [-0.1, 0, 0], [0, 0, 0]], "<f8").tobytes(),
    "stress": np.array([1, 4, 6, 5, 3, 2], "<f8").tobytes(),
}


def _database(path, *rows, version="9", columns=COLUMNS):
    path.unlink(missing_ok=True)
    with sqlite3.connect(path) as connection:
        connection.execute(f"CREATE TABLE systems ({columns})")
        connection.execute("CREATE TABLE information (name, value)")
        connection.execute("INSERT INTO information VALUES ('version', ?)", (version,))
        for row in rows:
            marks = ", ".join("?" * len(row))
            connection.execute(
                f"INSERT INTO systems ({', '.join(row)}) VALUES ({marks})", tuple(row.values())
            )
    connection.close()
    return path


def _assert_same(first, second):
    assert first.elements == second.elements
    for name in ("positions", "species", "num_atoms_of_each", "cells", "periodic"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name), err_msg=name)
    for name in ("energies", "forces", "stresses"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name), err_msg=name)


def test_a_database_gives_the_same_record_as_an_extxyz_file(write, tmp_path):
    second = {"numbers": np.array([6], "<i4").tobytes(), "positions": bytes(24), "energy": -0.5}
    data = read_ase(_database(tmp_path / "data.db", ROW, second), missing="nan")
    _assert_same(data, read_extxyz(write(TEXT), missing="nan"))
    assert data.name == "data.db"
    chosen = read_ase(tmp_path / "data.db", elements=("O", "H", "C"), missing="nan")
    assert chosen.species.tolist() == [1, 0, 1, 2]


BAD_ROWS = {
    "truncated positions": (
        {"positions": ROW["positions"][:-8]},
        r"expected positions of shape \[3, 3\], got 8 numbers",
    ),
    "a cut number": (
        {"positions": ROW["positions"][:-1]},
        "positions as numbers of 8 bytes, got 71",
    ),
    "text": ({"forces": "none"}, "expected forces as numbers of 8 bytes, got 'none'"),
    "no positions": ({"positions": None}, "expected positions, got none"),
    "no atoms": ({"numbers": b""}, "expected at least one atom, got none"),
    "an unknown element": (
        {"numbers": np.array([1, 119, 1], "<i4").tobytes()},
        r"expected atomic numbers in 1..118, got 119",
    ),
    "forces that are not finite": (
        {"forces": np.full(9, np.nan).tobytes()},
        "expected finite forces, got nan",
    ),
    "an energy of words": ({"energy": "low"}, "expected a finite energy, got 'low'"),
    "bits of pbc": ({"pbc": 8}, "expected pbc in 0..7, a bit for each axis, got 8"),
    "a flat cell": ({"cell": bytes(72)}, "expected a cell with linearly independent vectors"),
    "a stress of five": ({"stress": bytes(40)}, r"stress of shape \[6\] or \[9\], got 5 numbers"),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_a_bad_row_of_a_database_is_named(name, tmp_path):
    changed, message = BAD_ROWS[name]
    path = _database(tmp_path / "data.db", ROW, ROW | changed)
    with pytest.raises(ValueError, match=f"data.db: row 2: .*{message}"):
        read_ase(path)


def test_other_bad_databases_are_named(tmp_path):
    path = tmp_path / "data.db"
    for version in ("4", "10", "nine"):
        _database(path, ROW, version=version)
        with pytest.raises(
            ValueError, match=f"expected version 5 to 9 of the format, got {version}"
        ):
            read_ase(path)
    with pytest.raises(ValueError, match=r"row 1: expected one of H, got O"):
        read_ase(_database(path, ROW), elements=("H",))
    with pytest.raises(ValueError, match=r"data.db: expected at least one structure, got none"):
        read_ase(_database(path))
    with pytest.raises(ValueError, match=r"data.db: cannot be read as a database of ASE.*no such"):
        read_ase(_database(path, columns="id"))
    _database(path, *[ROW] * 40)
    path.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(ValueError, match=r"data.db: cannot be read as a database of ASE"):
        read_ase(path)
    path.write_text("{}")
    with pytest.raises(
        ValueError, match=r"data.db: expected a database of SQLite, got another file"
    ):
        read_ase(path)


# What would be computed when it is read, by functions with arguments of the file.
COMPUTED = {
    "a column": (
        "ALTER TABLE systems ADD COLUMN blob AS (zeroblob(900000000)) VIRTUAL",
        "expected stored columns in systems, got the generated column 'blob'",
    ),
    "a column of the other table": (
        "ALTER TABLE information ADD COLUMN size AS (abs(name)) VIRTUAL",
        "expected stored columns in information, got the generated column 'size'",
    ),
    "a stored column": (
        "DROP TABLE systems; CREATE TABLE systems (id INTEGER PRIMARY KEY, numbers, "
        "positions AS (printf('%.*c', 9, 'x')) STORED, cell, pbc, energy, forces, stress)",
        "expected stored columns in systems, got the generated column 'positions'",
    ),
    "a view": (
        "DROP TABLE systems; CREATE VIEW systems AS SELECT 1 AS id",
        "expected tables and indices alone, got the view 'systems'",
    ),
    "another view": ("CREATE VIEW more AS SELECT 1", "got the view 'more'"),
    "a trigger": (
        "CREATE TRIGGER some AFTER INSERT ON systems BEGIN SELECT 1; END",
        "expected tables and indices alone, got the trigger 'some'",
    ),
    "a virtual table": (
        "DROP TABLE information; CREATE VIRTUAL TABLE information USING fts4(name, value)",
        "expected tables and indices alone, got the virtual table 'information'",
    ),
    "no table": ("DROP TABLE information", "expected the tables systems and information, got"),
    "ids twice": (
        "ALTER TABLE systems RENAME TO old; CREATE TABLE systems (id, numbers, positions, cell, "
        "pbc, energy, forces, stress); INSERT INTO systems SELECT * FROM old; "
        "INSERT INTO systems SELECT * FROM old",
        "expected a whole number as id, each once, got 1",
    ),
    "ids of words": (
        "ALTER TABLE systems RENAME TO old; CREATE TABLE systems (id, numbers, positions, cell, "
        "pbc, energy, forces, stress); INSERT INTO systems (id) VALUES ('one')",
        "expected a whole number as id, each once, got one",
    ),
}


@pytest.mark.parametrize("name", COMPUTED)
def test_databases_that_compute_are_refused(name, tmp_path):
    script, message = COMPUTED[name]
    path = _database(tmp_path / "data.db", ROW)
    assert read_ase(path).num_structures == 1
    connection = sqlite3.connect(path)
    try:
        connection.executescript(script)
    except sqlite3.OperationalError as error:
        pytest.skip(f"this SQLite can not write it: {error}")
    finally:
        connection.close()
    with pytest.raises(ValueError, match=f"data.db: .*{message}"):
        read_ase(path)


# ASE itself sets shapes of arrays.
@pytest.mark.filterwarnings("ignore:Setting the shape on a NumPy array:DeprecationWarning")
def test_files_that_ase_writes_are_read_as_ase_reads_them(tmp_path):
    ase = pytest.importorskip("ase", reason="the package ase is not installed")
    from ase.calculators.singlepoint import SinglePointCalculator
    from ase.db import connect
    from ase.io import write as write_file

    rng = np.random.default_rng(0)
    cell = 4 * np.eye(3) + rng.random((3, 3))
    crystal = ase.Atoms("SiO2", rng.normal(size=(3, 3)), cell=cell, pbc=(True, True, False))
    voigt, forces = rng.normal(size=6), rng.normal(size=(3, 3))
    crystal.calc = SinglePointCalculator(crystal, energy=-3.25, forces=forces, stress=voigt)
    crystal.info = {"config_type": "", "note": 'a "b" {c}', "REF_energy": 1.5, "flag": None}
    crystal.info["REF_stress"] = np.diag([1.0, 2.0, 3.0])
    molecule = ase.Atoms("H2", [[0, 0, 0], [0, 0, 0.74]])
    molecule.calc = SinglePointCalculator(molecule, energy=-1.0, forces=np.zeros((2, 3)))
    with connect(tmp_path / "data.db") as database:
        for atoms in (crystal, molecule):
            database.write(atoms, note="some")
    write_file(tmp_path / "data.extxyz", [crystal, molecule])
    data = read_ase(tmp_path / "data.db")
    np.testing.assert_array_equal(data.positions[:3], crystal.positions)
    np.testing.assert_array_equal(data.stresses[0], crystal.get_stress(voigt=False))
    np.testing.assert_array_equal(data.forces[:3], forces)
    np.testing.assert_array_equal(data.cells[0], cell)
    assert data.elements == ("H", "O", "Si") and data.energies.tolist() == [-3.25, -1]
    text = read_extxyz(tmp_path / "data.extxyz")
    assert text.species.tolist() == data.species.tolist()
    for name in ("positions", "forces", "cells", "stresses"):
        np.testing.assert_allclose(getattr(text, name), getattr(data, name), atol=1e-8)
    assert (
        text.energies.tolist() == [-3.25, -1] and text.periodic.tolist() == data.periodic.tolist()
    )
    named = {"energy": "REF_energy", "stress": "REF_stress", "missing": "nan"}
    with pytest.warns(UserWarning, match="no REF_energy, and 'energy' is ignored"):
        chosen = read_extxyz(tmp_path / "data.extxyz", **named)
    assert chosen.energies[0] == 1.5
    np.testing.assert_array_equal(chosen.stresses[0], crystal.info["REF_stress"])
