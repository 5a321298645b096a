"""Programs in the styles found on GitHub, by theme. `cases.subset` imports all files of this folder."""
