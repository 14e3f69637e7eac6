"""Write the example stage profile from its fitted coefficients; the same bytes every time.

Usage: python profiles/scripts/generate_example_profile.py [--check]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from flyball_profiles.examples import example_profile_path
from flyball_profiles.fitted_curves import parse_fitted_profile
from flyball_profiles.stage_profile import ProfileError
from flyball_profiles.stage_profile_csv import write_stage_profile


def main() -> int:
    """Generate the CSV, or compare it with what is there; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    csv_path = example_profile_path()
    parser.add_argument("--coefficients", type=Path, default=csv_path.with_suffix(".toml"))
    parser.add_argument("--output", type=Path, default=csv_path)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 unless the output is current"
    )
    options = parser.parse_args()
    try:
        fitted = parse_fitted_profile(options.coefficients.read_text(encoding="utf-8"))
        text = write_stage_profile(fitted.stage_profile())
        if options.check:
            current = options.output.read_bytes() == text.encode()
            if not current:
                print(f"{options.output}: differs from what its coefficients give", file=sys.stderr)
            return 0 if current else 1
        options.output.write_bytes(text.encode())
    except ProfileError as error:
        print(error.located(str(options.coefficients)), file=sys.stderr)
        return 2
    except (OSError, UnicodeDecodeError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
