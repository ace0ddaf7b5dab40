from ..experiment.conftest import table as table
