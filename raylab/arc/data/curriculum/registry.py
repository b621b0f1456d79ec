"""All families of the curriculum, by name."""

from raylab.arc.data.curriculum import colours, geometry, objects, relations
from raylab.arc.data.curriculum.family import Family

FAMILIES: dict[str, Family] = {
    family.name: family
    for module in (geometry, colours, objects, relations)
    for family in module.FAMILIES
}
